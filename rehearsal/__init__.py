"""The rehearsed deployment: the CDK app is deployed into an emulator of AWS, used, changed and destroyed."""
