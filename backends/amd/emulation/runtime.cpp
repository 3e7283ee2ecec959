// Runs emulated kernels: the threads of a work-group are fibers, waves run in a random order between barriers, work-groups one by one.
#include "context.h"
#include "runtime.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

namespace emulated {

Now now;
bool flush_subnormals = true;
bool failed = false;

namespace {

constexpr size_t STACK = 512 * 1024;

enum State { RUNNING, IN_WAVE, AT_BARRIER, DONE };
struct Lane {
  Context context;
  char *stack = nullptr;
  AttnWaveOp *op = nullptr;
  const void *caller = nullptr;
  State state = DONE;
};
std::vector<Lane> lanes;
Context scheduler;
void (*kernel)(void **);
void **arguments;
std::string message;

void leave(State state) {
  Lane &me = lanes[now.lane];
  me.state = state;
  me.context.switch_to(scheduler);
}

void start_lane() {
  kernel(arguments);
  leave(DONE);
  abort();
}

// Stacks are given back after each run: those of 256 lanes have touched 2 MB and more.
void leave_stacks() {
  for (Lane &lane : lanes) munmap(lane.stack, STACK);
  lanes.clear();
}

// Runs a wave until it is at a barrier or done; false after an error.
bool run_wave(int wave, std::mt19937 &random) {
  Lane *first = &lanes[wave * ATTN_LANES];
  for (;;) {
    unsigned rotation = random() % ATTN_LANES;
    int counts[4] = {0, 0, 0, 0};
    for (int i = 0; i < ATTN_LANES; ++i) {
      int index = (i + rotation) % ATTN_LANES;
      Lane &lane = first[index];
      if (lane.state == RUNNING || lane.state == IN_WAVE) {
        lane.state = RUNNING;
        now.lane = wave * ATTN_LANES + index;
        scheduler.switch_to(lane.context);
        if (failed) return false;
      }
      ++counts[lane.state];
    }
    if (counts[AT_BARRIER] == ATTN_LANES || counts[DONE] == ATTN_LANES) return true;
    now.lane = wave * ATTN_LANES;
    if (counts[IN_WAVE] != ATTN_LANES) {
      fail("the lanes of a wave part: " + std::to_string(counts[IN_WAVE]) + " are at an operation of the wave, " +
               std::to_string(counts[AT_BARRIER]) + " at a barrier, " + std::to_string(counts[DONE]) + " at the end",
           first->caller);
      return false;
    }
    AttnWaveOp *ops[ATTN_LANES];
    for (int i = 0; i < ATTN_LANES; ++i) {
      ops[i] = first[i].op;
      if (first[i].caller != first->caller) {
        now.lane = wave * ATTN_LANES + i;
        fail("the lanes of a wave are at different operations of the wave", first[i].caller);
        return false;
      }
    }
    std::string wrong = execute(ops);
    ++now.wave;
    if (!wrong.empty()) {
      fail(wrong, first->caller);
      return false;
    }
  }
}

bool run_group(int threads, std::mt19937 &random) {
  clear_shared_memory();
  ++now.barrier, ++now.wave;
  for (int i = 0; i < threads; ++i) {
    lanes[i].context.prepare(lanes[i].stack, STACK, start_lane);
    lanes[i].state = RUNNING;
  }
  std::vector<int> order(threads / ATTN_LANES);
  for (size_t i = 0; i < order.size(); ++i) order[i] = (int)i;
  for (;;) {
    std::shuffle(order.begin(), order.end(), random);
    size_t done = 0;
    for (int wave : order) {
      if (!run_wave(wave, random)) return false;
      done += lanes[wave * ATTN_LANES].state == DONE;
    }
    if (done == order.size()) return true;
    if (done) {
      fail(std::to_string(done) + " of " + std::to_string(order.size()) + " waves end, while the others wait at a barrier", nullptr);
      return false;
    }
    ++now.barrier, ++now.wave;
    for (int i = 0; i < threads; ++i) lanes[i].state = RUNNING;
  }
}

}  // namespace

void fail(const std::string &what, const void *caller) {
  if (failed) return;
  failed = true;
  auto text = [](long number) { return std::to_string(number); };
  message = "work-group (" + text(now.block.x) + ", " + text(now.block.y) + ", " + text(now.block.z) + ")";
  if (now.lane >= 0) message += ", wave " + text(now.lane / ATTN_LANES) + ", lane " + text(now.lane % ATTN_LANES);
  message += ": " + what;
  Dl_info info;
  if (caller && dladdr(caller, &info)) message += "\n" + text((const char *)caller - (const char *)info.dli_fbase - 1);
}

void stop(const std::string &what, const void *caller) {
  fail(what, caller);
  leave(RUNNING);
  abort();
}

bool is_on_stack(const char *address, size_t bytes) {
  const char *stack = lanes[now.lane].stack;
  return address >= stack && address + bytes <= stack + STACK;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

unsigned attn_emulated_thread() { return (unsigned)now.lane; }
AttnIndex attn_emulated_block() { return now.block; }

void attn_emulated_wave(AttnWaveOp *op) {
  lanes[now.lane].op = op;
  lanes[now.lane].caller = __builtin_return_address(0);
  leave(IN_WAVE);
}

void attn_emulated_barrier() {
  lanes[now.lane].caller = __builtin_return_address(0);
  leave(AT_BARRIER);
}

// Runs a kernel on a grid. `entry` calls it with what the pointers in `values` point to. Returns nullptr, or what went wrong: a line of
// text, then, where it is known, a line with the offset of the instruction in the library.
const char *attn_emulated_run(void (*entry)(void **), void **values, const unsigned grid[3], int threads, unsigned seed, int flush) {
  kernel = entry;
  arguments = values;
  flush_subnormals = flush != 0;
  failed = false;
  now = Now{};
  forget_accesses();
  while ((int)lanes.size() < threads) {
    lanes.emplace_back();
    lanes.back().stack = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  std::mt19937 random(seed);
  for (now.block.z = 0; now.block.z < grid[2]; ++now.block.z)
    for (now.block.y = 0; now.block.y < grid[1]; ++now.block.y)
      for (now.block.x = 0; now.block.x < grid[0]; ++now.block.x, ++now.group)
        if (!run_group(threads, random)) return leave_stacks(), message.c_str();
  now.lane = -1;
  leave_stacks();
  return nullptr;
}
}

// Older libraries of compilers lack it: f32 to bf16, to nearest even.
extern "C" __attribute__((weak)) __bf16 __truncsfbf2(float x) {
  uint32_t bits = __builtin_bit_cast(uint32_t, x);
  uint32_t rounded = x != x ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return __builtin_bit_cast(__bf16, (uint16_t)rounded);
}
