"""The events that a read model cannot be built from, told by plans over a batch that never raise."""
