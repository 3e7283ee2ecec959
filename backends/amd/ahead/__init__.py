"""Libraries made ahead of time for AMD GPUs: the kernels that the driver would launch as code objects, and what launches them."""
