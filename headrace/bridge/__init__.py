"""The bridge for clients that speak Pravega's controller protocol: gRPC in, the same controller services behind it."""
