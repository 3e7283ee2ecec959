/* A libamdhip64 whose device memory is the host's: launches go to a function of the test, calls that tests look at are lines of JSON. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Launch(const void *code, const char *name, const unsigned *sizes, void **parameters);
typedef struct {
  const void *code;
  char name[96];
} Function;
static char *text_;
static size_t used_, room_;
static Function functions_[1024];
static int function_count_, device_, failing_, capturing_;
static char failing_name_[64];
static Launch *launch_;

static void tell(const char *format, ...) {
  va_list arguments;
  if (room_ - used_ < 4096) text_ = realloc(text_, room_ = 2 * room_ + 65536);
  va_start(arguments, format);
  used_ += (size_t)vsnprintf(text_ + used_, room_ - used_, format, arguments);
  va_end(arguments);
}
static int result(const char *name) { return failing_ && !strcmp(failing_name_, name) ? failing_ : 0; }

const char *fake_log(void) { return text_ ? text_ : ""; }
void fake_reset(void) { used_ = 0, failing_ = 0, capturing_ = 0; tell("%s", ""); text_[0] = 0; }
void fake_fail(const char *name, int code) { strncpy(failing_name_, name, 63), failing_ = code; }
void fake_capture(int status) { capturing_ = status; }
void fake_launch(Launch *launch) { launch_ = launch; }
int fake_device(void) { return device_; }

int hipInit(unsigned flags) { return (void)flags, result("hipInit"); }
int hipGetDevice(int *to) { return *to = device_, 0; }
int hipSetDevice(int device) { return device_ = device, 0; }
int hipDeviceGetName(char *to, int size, int device) { return (void)device, snprintf(to, (size_t)size, "AMD Fake"), 0; }
/* Stream 100 + n is one of device n. */
int hipStreamGetDevice(void *stream, int *to) { return *to = (int)(uintptr_t)stream - 100, 0; }
int hipStreamIsCapturing(void *stream, int *to) { return (void)stream, *to = capturing_, 0; }
int hipStreamSynchronize(void *stream) { return tell("{\"call\": \"wait\", \"stream\": %zu}\n", (size_t)stream), 0; }
int hipThreadExchangeStreamCaptureMode(int *mode) { return (void)mode, 0; }
int hipModuleLoadData(void **to, const void *image) {
  tell("{\"call\": \"load\", \"magic\": \"%.3s\", \"device\": %d}\n", (const char *)image + 1, device_);
  return *to = (void *)image, result("hipModuleLoadData");
}
int hipModuleGetFunction(void **to, void *module, const char *name) {
  Function *f = &functions_[function_count_++];
  f->code = module;
  strncpy(f->name, name, 95);
  return *to = f, result("hipModuleGetFunction");
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          void *stream, void **parameters, void **extra) {
  const Function *f = function;
  const unsigned sizes[] = {gx, gy, gz, bx};
  tell("{\"call\": \"launch\", \"name\": \"%s\", \"grid\": [%u, %u, %u], \"threads\": [%u, %u, %u], \"shared\": %u, \"stream\": %zu, \"extra\": %d}\n",
       f->name, gx, gy, gz, bx, by, bz, shared, (size_t)stream, extra != NULL);
  if (result("hipModuleLaunchKernel")) return failing_;
  return launch_ ? launch_(f->code, f->name, sizes, parameters) : 0;
}
int hipMalloc(void **to, size_t size) { return *to = aligned_alloc(512, (size + 511) / 512 * 512), 0; }
int hipMallocAsync(void **to, size_t size, void *stream) {
  *to = aligned_alloc(512, (size + 511) / 512 * 512);
  tell("{\"call\": \"take\", \"address\": %llu, \"size\": %zu, \"stream\": %zu}\n", (unsigned long long)(uintptr_t)*to, size, (size_t)stream);
  return result("hipMallocAsync");
}
int hipFreeAsync(void *address, void *stream) {
  tell("{\"call\": \"free\", \"address\": %llu, \"stream\": %zu}\n", (unsigned long long)(uintptr_t)address, (size_t)stream);
  return free(address), 0;
}
int hipMemset(void *to, int value, size_t size) { return memset(to, value, size), 0; }
int hipMemsetAsync(void *to, int value, size_t size, void *stream) {
  tell("{\"call\": \"clear\", \"size\": %zu, \"stream\": %zu}\n", size, (size_t)stream);
  return memset(to, value, size), 0;
}
int hipMemcpyDtoHAsync(void *to, void *from, size_t size, void *stream) { return (void)stream, memcpy(to, from, size), 0; }
const char *hipGetErrorName(int code) { return code == 500 ? "hipErrorNotFound" : "hipErrorFake"; }
const char *hipGetErrorString(int code) { return (void)code, "what the runtime says of it"; }
