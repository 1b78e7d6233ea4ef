"""Work on data and metadata of brokers that need not run: repair, back-up, first users."""
