"""The objects tier: frames in an object store, for durability beyond one disk and for replay."""
