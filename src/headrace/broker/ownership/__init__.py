"""Who owns which partition among several brokers: facts, claims, hand-overs, balance."""
