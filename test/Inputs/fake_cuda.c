/* A libcuda whose device memory is the host's: it runs nothing, and writes a line of JSON for each call that tests look at. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char name[96];
  int count, sizes[64];
} Function;
static char *text_;
static size_t used_, room_;
static Function functions_[1024];
static int function_count_, attributes_[128], failing_, capturing_, maps_;
static char failing_name_[64], current_[8];
static void *contexts_[16];
static int depth_;

static void tell(const char *format, ...) {
  va_list arguments;
  if (room_ - used_ < 4096) text_ = realloc(text_, room_ = 2 * room_ + 65536);
  va_start(arguments, format);
  used_ += (size_t)vsnprintf(text_ + used_, room_ - used_, format, arguments);
  va_end(arguments);
}
static int result(const char *name) { return failing_ && !strcmp(failing_name_, name) ? failing_ : 0; }

const char *fake_log(void) { return text_ ? text_ : ""; }
int fake_depth(void) { return depth_; }
void fake_reset(void) { used_ = 0, maps_ = 0, failing_ = 0, capturing_ = 0; tell("%s", ""); text_[0] = 0; }
void fake_attribute(int which, int value) { attributes_[which] = value; }
void fake_fail(const char *name, int code) { strncpy(failing_name_, name, 63), failing_ = code; }
void fake_capture(int status) { capturing_ = status; }
void fake_layout(const char *name, int count, const int *sizes) {
  Function *f = &functions_[function_count_++];
  strncpy(f->name, name, 95), f->count = count;
  memcpy(f->sizes, sizes, sizeof(int) * (size_t)count);
}

int cuInit(unsigned flags) { return (void)flags, result("cuInit"); }
int cuDeviceGet(int *to, int number) { return *to = number, result("cuDeviceGet"); }
int cuDeviceGetAttribute(int *to, int which, int device) { return (void)device, *to = attributes_[which], 0; }
int cuDeviceGetName(char *to, int size, int device) { return (void)device, snprintf(to, (size_t)size, "NVIDIA Fake"), 0; }
int cuDevicePrimaryCtxRetain(void **to, int device) { return *to = &current_[device], result("cuDevicePrimaryCtxRetain"); }
int cuCtxGetCurrent(void **to) { return *to = depth_ ? contexts_[depth_ - 1] : NULL, 0; }
int cuCtxGetDevice(int *to) { return *to = (int)((char *)contexts_[depth_ - 1] - current_), 0; }
int cuCtxPushCurrent_v2(void *context) { return contexts_[depth_++] = context, 0; }
int cuCtxPopCurrent_v2(void **to) { return *to = contexts_[--depth_], 0; }
/* Stream 100 + n is one of device n. */
int cuStreamGetCtx(void *stream, void **to) { return *to = &current_[(uintptr_t)stream - 100], 0; }
int cuStreamIsCapturing(void *stream, int *to) { return (void)stream, *to = capturing_, 0; }
int cuStreamSynchronize(void *stream) { return tell("{\"call\": \"wait\", \"stream\": %zu}\n", (size_t)stream), 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return (void)mode, 0; }
int cuModuleLoadData(void **to, const void *image) {
  tell("{\"call\": \"load\", \"magic\": \"%.3s\"}\n", (const char *)image + 1);
  return *to = (void *)image, result("cuModuleLoadData");
}
int cuModuleGetFunction(void **to, void *module, const char *name) {
  (void)module;
  for (int i = function_count_ - 1; i >= 0; --i)
    if (!strcmp(functions_[i].name, name)) return *to = &functions_[i], 0;
  return 500;
}
int cuFuncSetAttribute(void *f, int which, int value) { return (void)f, (void)which, (void)value, 0; }
int cuLaunchKernelEx(const unsigned *config, void *function, void **parameters, void **extra) {
  const Function *f = function;
  size_t words[3];
  (void)extra;
  memcpy(words, config + 8, sizeof words); /* stream, attributes, their number */
  unsigned cluster = (unsigned)words[2] ? ((const unsigned *)words[1])[2] : 1;
  tell("{\"call\": \"launch\", \"name\": \"%s\", \"grid\": [%u, %u, %u], \"threads\": %u, \"shared\": %u, \"stream\": %zu, \"cluster\": %u, \"parameters\": [",
       f->name, config[0], config[1], config[2], config[3], config[6], words[0], cluster);
  for (int i = 0; i < f->count; ++i) {
    tell(i ? ", \"" : "\"");
    for (int b = 0; b < f->sizes[i]; ++b) tell("%02x", ((unsigned char *)parameters[i])[b]);
    tell("\"");
  }
  tell("]}\n");
  return result("cuLaunchKernelEx");
}
int cuMemAlloc_v2(uint64_t *to, size_t size) { return *to = (uintptr_t)aligned_alloc(512, (size + 511) / 512 * 512), 0; }
int cuMemAllocAsync(uint64_t *to, size_t size, void *stream) {
  *to = (uintptr_t)aligned_alloc(512, (size + 511) / 512 * 512);
  tell("{\"call\": \"take\", \"address\": %llu, \"size\": %zu, \"stream\": %zu}\n", (unsigned long long)*to, size, (size_t)stream);
  return result("cuMemAllocAsync");
}
int cuMemFreeAsync(uint64_t address, void *stream) {
  (void)stream;
  tell("{\"call\": \"free\", \"address\": %llu}\n", (unsigned long long)address);
  return free((void *)(uintptr_t)address), 0;
}
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t size) { return memset((void *)(uintptr_t)to, value, size), 0; }
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream) {
  tell("{\"call\": \"clear\", \"address\": %llu, \"size\": %zu, \"stream\": %zu}\n", (unsigned long long)to, size, (size_t)stream);
  return memset((void *)(uintptr_t)to, value, size), 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
  (void)stream;
  return memcpy(to, (void *)(uintptr_t)from, size), 0;
}
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *strides,
                           const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int outside) {
  (void)rank, (void)steps, (void)interleave;
  memset(map, 0, 128), *(int *)map = maps_++;
  tell("{\"call\": \"map\", \"type\": %d, \"address\": %llu, \"dims\": [%llu, %llu, %llu, %llu], \"strides\": [%llu, %llu, %llu], ", type,
       (unsigned long long)(uintptr_t)address, (unsigned long long)sizes[0], (unsigned long long)sizes[1], (unsigned long long)sizes[2],
       (unsigned long long)sizes[3], (unsigned long long)strides[0], (unsigned long long)strides[1], (unsigned long long)strides[2]);
  tell("\"box\": [%u, %u, %u, %u], \"swizzle\": %d, \"promotion\": %d, \"outside\": %d}\n", box[0], box[1], box[2], box[3], swizzle, promotion, outside);
  return (uintptr_t)map % 64 || (uintptr_t)address % 16 ? 1 : 0;
}
int cuGetErrorName(int code, const char **to) { return *to = code == 500 ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_FAKE", 0; }
int cuGetErrorString(int code, const char **to) { return (void)code, *to = "what the driver says of it", 0; }
