"""The engine of groups whose coordinator assigns: consumer groups (KIP-848), streams groups
(KIP-1071)."""
