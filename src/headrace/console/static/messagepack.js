// MessagePack (its specification of 2013, with the timestamp extension) as values of JSON.
import { t } from "./words.js";

const DEPTH_MAX = 64;
const SIZES = { 0xc4: 1, 0xc5: 2, 0xc6: 4, 0xc7: 1, 0xc8: 2, 0xc9: 4, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4 };
const asHex = (bytes) => `0x${[...bytes].map((one) => one.toString(16).padStart(2, "0")).join("")}`;
const safe = (big) => (big >= Number.MIN_SAFE_INTEGER && big <= Number.MAX_SAFE_INTEGER ? Number(big) : String(big));

// The one value that these bytes are. Integers beyond 2^53 become strings, bytes hexadecimal
// strings. Throws an Error that says where it is not MessagePack.
export function messagePack(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (reader.at < bytes.length) throw reader.fault(t("the value ends before the bytes do"));
  return value;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.text = new TextDecoder("utf-8", { fatal: true });
    this.at = 0;
  }

  fault(why) {
    return new Error(t("not MessagePack at byte {at}: {why}", { at: this.at, why }));
  }

  take(size) {
    if (this.at + size > this.bytes.length) throw this.fault(t("the bytes end before the value does"));
    this.at += size;
    return this.at - size;
  }

  size(width) {
    const at = this.take(width);
    return width === 1 ? this.view.getUint8(at) : width === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
  }

  raw(size) {
    const at = this.take(size);
    return this.bytes.subarray(at, at + size);
  }

  string(size) {
    const raw = this.raw(size);
    try {
      return this.text.decode(raw);
    } catch {
      throw this.fault(t("a string is not UTF-8"));
    }
  }

  value(depth) {
    if (depth > DEPTH_MAX) throw this.fault(t("nested too deeply"));
    const code = this.size(1);
    if (code < 0x80) return code;
    if (code >= 0xe0) return code - 256;
    if (code < 0x90) return this.map(code & 15, depth);
    if (code < 0xa0) return this.list(code & 15, depth);
    if (code < 0xc0) return this.string(code & 31);
    if (code === 0xc0) return null;
    if (code === 0xc2 || code === 0xc3) return code === 0xc3;
    if (code >= 0xca && code <= 0xd3) return this.number(code);
    if (code >= 0xd4 && code <= 0xd8) return this.extension(1 << (code - 0xd4));
    if (code === 0xc1) throw this.fault(t("a byte that is never used"));
    const size = this.size(SIZES[code]);
    if (code <= 0xc6) return asHex(this.raw(size));
    if (code <= 0xc9) return this.extension(size);
    if (code <= 0xdb) return this.string(size);
    return code <= 0xdd ? this.list(size, depth) : this.map(size, depth);
  }

  number(code) {
    const width = [4, 8, 1, 2, 4, 8, 1, 2, 4, 8][code - 0xca];
    const at = this.take(width);
    if (code === 0xca) return this.view.getFloat32(at);
    if (code === 0xcb) return this.view.getFloat64(at);
    if (width === 8) return safe(code === 0xcf ? this.view.getBigUint64(at) : this.view.getBigInt64(at));
    return this.view[`get${code < 0xd0 ? "Uint" : "Int"}${width * 8}`](at);
  }

  extension(size) {
    const at = this.take(1);
    const type = this.view.getInt8(at);
    const raw = this.raw(size);
    return type === -1 ? timestamp(raw) : { extension: type, data: asHex(raw) };
  }

  list(size, depth) {
    const found = [];
    for (let number = 0; number < size; number += 1) found.push(this.value(depth + 1));
    return found;
  }

  // Its keys may be any values: those that are no strings are written as JSON.
  map(size, depth) {
    const found = Object.create(null);
    for (let number = 0; number < size; number += 1) {
      const key = this.value(depth + 1);
      found[typeof key === "string" ? key : JSON.stringify(key)] = this.value(depth + 1);
    }
    return found;
  }
}

function timestamp(raw) {
  const view = new DataView(raw.buffer, raw.byteOffset, raw.length);
  let seconds;
  let nanoseconds = 0;
  if (raw.length === 4) seconds = view.getUint32(0);
  else if (raw.length === 8) {
    const both = view.getBigUint64(0);
    seconds = Number(both & 0x3ffffffffn);
    nanoseconds = Number(both >> 34n);
  } else if (raw.length === 12) {
    nanoseconds = view.getUint32(0);
    seconds = Number(view.getBigInt64(4));
  }
  const ms = seconds * 1000 + Math.floor(nanoseconds / 1e6);
  return Math.abs(ms) <= 8.64e15 ? new Date(ms).toISOString() : { extension: -1, data: asHex(raw) };
}
