"""An asyncio client of ZooKeeper: encoding, connections, sessions and their end."""
