"""One model in one cache mode after another: what each mode costs and what it saves."""
