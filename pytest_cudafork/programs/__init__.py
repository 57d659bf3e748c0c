"""Running any program under the watch: a fresh interpreter, and all that it and its like did."""
