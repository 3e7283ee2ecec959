// Fibers of the emulations: a stack, and where it was left. On x86-64 a switch saves the registers that calls keep, without a system call.
#pragma once
#include <stddef.h>

#if defined(__x86_64__)
extern "C" void attn_emulated_switch(void **save, void *load);
__asm__(R"(
.text
.globl attn_emulated_switch
.type attn_emulated_switch,@function
attn_emulated_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
struct Context {
  void *pointer = nullptr;
  void prepare(char *stack, size_t size, void (*entry)()) {
    void **top = (void **)(stack + size);
    *--top = nullptr;
    *--top = (void *)entry;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    pointer = top;
  }
  void switch_to(Context &other) { attn_emulated_switch(&pointer, other.pointer); }
};
#else
#include <ucontext.h>
struct Context {
  ucontext_t state;
  void prepare(char *stack, size_t size, void (*entry)()) {
    getcontext(&state);
    state.uc_stack.ss_sp = stack;
    state.uc_stack.ss_size = size;
    state.uc_link = nullptr;
    makecontext(&state, entry, 0);
  }
  void switch_to(Context &other) { swapcontext(&state, &other.state); }
};
#endif
