// Checks of every load and store: bounds of tensors, and races. The kernel is compiled with -fsanitize=thread, whose calls end up here.
#include <cstring>
#include <vector>

#include "runtime.h"

extern "C" {
extern char __start_attn_lds[] __attribute__((weak, visibility("hidden")));
extern char __stop_attn_lds[] __attribute__((weak, visibility("hidden")));
}

namespace emulated {

namespace {

constexpr size_t GRAIN = 2;  // bytes that are told apart

// Who touched two bytes last.
struct Touch {
  int lane = -1;
  bool atomic = false;
  int group = 0, barrier = 0, wave = 0;
};
struct Cell {
  Touch written, read;
  // Of earlier reads by others: in this barrier's interval, this interval of the wave, this launch.
  int other_wave = -1, other_lane = -1, other_group = -1;
};

struct Tensor {
  const char *begin, *end;
  bool writable;
  std::string name;
  std::vector<Cell> cells;
};
std::vector<Tensor> tensors;
std::vector<Cell> shared;
const std::string SHARED = "shared memory";

Touch here(bool atomic) { return {now.lane, atomic, now.group, now.barrier, now.wave}; }

// Whether nothing orders an earlier access and the present one.
bool meets(const Touch &before) {
  if (before.lane < 0) return false;
  if (before.group != now.group) return true;
  if (before.lane == now.lane) return false;
  if (before.lane / ATTN_LANES == now.lane / ATTN_LANES) return before.wave == now.wave;
  return before.barrier == now.barrier;
}

std::string who(const Touch &touch) {
  std::string text = "wave " + std::to_string(touch.lane / ATTN_LANES) + ", lane " + std::to_string(touch.lane % ATTN_LANES);
  return touch.group == now.group ? text : "another work-group (number " + std::to_string(touch.group) + ")";
}

void note_read(Cell &cell) {
  const Touch &last = cell.read;
  if (last.lane >= 0 && last.lane != now.lane) {
    if (last.group != now.group)
      cell.other_group = now.group;
    else if (last.lane / ATTN_LANES != now.lane / ATTN_LANES && last.barrier == now.barrier)
      cell.other_wave = now.barrier;
    else if (last.lane / ATTN_LANES == now.lane / ATTN_LANES && last.wave == now.wave)
      cell.other_lane = now.wave;
  }
  cell.read = here(false);
}

[[noreturn]] void race(bool write, size_t byte, const std::string &memory, const Touch &other, const char *does, const void *caller) {
  std::string place = "byte " + std::to_string(byte) + " of " + memory;
  stop((write ? "writes " : "reads ") + place + ", which " + who(other) + does + "without a barrier between them", caller);
}

// Bytes of memory that a lane touches. Texts are made where one of them is told: this runs for each access of each lane.
void touch(std::vector<Cell> &cells, size_t first, size_t last, bool write, bool atomic, const std::string &memory, const void *caller) {
  for (size_t i = first / GRAIN; i <= last / GRAIN; ++i) {
    Cell &cell = cells[i];
    if (meets(cell.written) && !(atomic && cell.written.atomic)) race(write, GRAIN * i, memory, cell.written, " writes ", caller);
    if (!write) {
      note_read(cell);
      continue;
    }
    bool others = cell.other_wave == now.barrier || cell.other_lane == now.wave || cell.other_group >= 0;
    if (meets(cell.read) || (cell.read.lane >= 0 && others)) race(write, GRAIN * i, memory, cell.read, " reads ", caller);
    cell.written = here(atomic);
  }
}

void access(const char *address, size_t bytes, bool write, bool atomic, const void *caller) {
  if (now.lane < 0 || is_on_stack(address, bytes)) return;
  auto text = [](size_t number) { return std::to_string(number); };
  if (address < __stop_attn_lds && address + bytes > __start_attn_lds) {
    size_t first = (size_t)(address - __start_attn_lds), last = first + bytes - 1;
    if (address < __start_attn_lds || last / GRAIN >= shared.size()) stop("an access crosses the end of shared memory", caller);
    return touch(shared, first, last, write, atomic, SHARED, caller);
  }
  const Tensor *near = nullptr;
  bool readable = false;
  for (Tensor &tensor : tensors) {
    if (address >= tensor.begin && address + bytes <= tensor.end) {
      readable = true;
      if (tensor.cells.empty()) continue;  // only read
      size_t first = (size_t)(address - tensor.begin);
      return touch(tensor.cells, first, first + bytes - 1, write, atomic, tensor.name, caller);
    }
    if (address + (1 << 20) >= tensor.begin && address <= tensor.end + (1 << 20)) near = &tensor;
  }
  if (readable && !write) return;
  std::string what = std::string(write ? "writes " : "reads ") + text(bytes) + " bytes at address " + text((size_t)address);
  if (readable)
    what += ", in a tensor that is only read";
  else if (near && address < near->begin)
    what += ", " + text((size_t)(near->begin - address)) + " bytes in front of " + near->name;
  else if (near)
    what += ", from byte " + text((size_t)(address - near->begin)) + " of " + near->name + ", which has " + text((size_t)(near->end - near->begin));
  else if (address >= __stop_attn_lds && address < __stop_attn_lds + (1 << 16))
    what += ", behind the end of shared memory";
  else
    what += ", where there is no tensor";
  stop(what, caller);
}

void misaligned(const void *address, size_t bytes, const void *caller) {
  if (now.lane >= 0) stop("an access of " + std::to_string(bytes) + " bytes at address " + std::to_string((size_t)address) + ", which is no multiple of it", caller);
}

}  // namespace

void forget_accesses() {
  for (Tensor &tensor : tensors) tensor.cells.assign(tensor.writable ? (size_t)(tensor.end - tensor.begin) / GRAIN + 2 : 0, Cell{});
}

void clear_shared_memory() {
  size_t bytes = (size_t)(__stop_attn_lds - __start_attn_lds);
  if (bytes) memset(__start_attn_lds, 0xff, bytes);
  shared.assign(bytes / GRAIN + 1, Cell{});
}

}  // namespace emulated

using namespace emulated;

extern "C" {

void attn_emulated_access(const void *address, size_t bytes, int write, const void *caller) {
  access((const char *)address, bytes, write != 0, false, caller);
}

void attn_emulated_atomic_add(float *address, float x) {
  access((const char *)address, sizeof(float), true, true, __builtin_return_address(0));
  *address += x;
}

long attn_emulated_shared_bytes() { return __stop_attn_lds - __start_attn_lds; }
void attn_emulated_forget() {
  tensors.clear();
  std::vector<Cell>().swap(shared);  // 26 bytes for each of shared memory: libraries stay for as long as their kernels
}
void attn_emulated_tensor(const void *begin, size_t bytes, int writable, const char *name) {
  tensors.push_back({(const char *)begin, (const char *)begin + bytes, writable != 0, name, {}});
}

#define ATTN_ACCESS(NAME, BYTES, READS, WRITES, ALIGNMENT) \
  void __tsan_##NAME(void *address) { \
    if ((size_t)address % ALIGNMENT) misaligned(address, BYTES, __builtin_return_address(0)); \
    if (READS) access((const char *)address, BYTES, false, false, __builtin_return_address(0)); \
    if (WRITES) access((const char *)address, BYTES, true, false, __builtin_return_address(0)); \
  }
#define ATTN_ACCESSES(BYTES) \
  ATTN_ACCESS(read##BYTES, BYTES, true, false, BYTES) \
  ATTN_ACCESS(write##BYTES, BYTES, false, true, BYTES) \
  ATTN_ACCESS(read_write##BYTES, BYTES, true, true, BYTES) \
  ATTN_ACCESS(unaligned_read##BYTES, BYTES, true, false, 1) \
  ATTN_ACCESS(unaligned_write##BYTES, BYTES, false, true, 1) \
  ATTN_ACCESS(unaligned_read_write##BYTES, BYTES, true, true, 1)
ATTN_ACCESSES(1)
ATTN_ACCESSES(2)
ATTN_ACCESSES(4)
ATTN_ACCESSES(8)
ATTN_ACCESSES(16)

void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void *__tsan_memset(void *to, int byte, size_t bytes) {
  access((const char *)to, bytes, true, false, __builtin_return_address(0));
  return memset(to, byte, bytes);
}
void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
  access((const char *)from, bytes, false, false, __builtin_return_address(0));
  access((const char *)to, bytes, true, false, __builtin_return_address(0));
  return memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes) {
  access((const char *)from, bytes, false, false, __builtin_return_address(0));
  access((const char *)to, bytes, true, false, __builtin_return_address(0));
  return memmove(to, from, bytes);
}
}
