"""What a data folder holds, read without a broker and without changing it."""
