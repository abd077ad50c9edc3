"""What tests of programs that use Headrace need: a pytest plugin with a local stack and a scope for each test."""
