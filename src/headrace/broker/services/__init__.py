"""Services over topics, groups and logs that every protocol face exposes."""
