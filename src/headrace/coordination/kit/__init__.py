"""What the state machines of coordination are built of, and what knows none of them."""
