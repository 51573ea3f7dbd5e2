"""The messages of the protocol: .proto files and the code that `make proto` writes from them."""
