"""The bridge for clients of Pravega's controller protocol: a gRPC server that calls the same controller services."""
