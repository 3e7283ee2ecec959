// Registers of threads of warpgroups, and descriptors of wgmma's operands in shared memory, as attn_hopper.cuh has them. There the address is added,
// here it is or'ed: the same numbers,
// but other machine code than that of the chunk scans which were timed.
#pragma once

namespace attn {

// All warps of a warpgroup say how many registers a thread has from here on.
template <int Registers> ATTN_DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers)); }
template <int Registers> ATTN_DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers)); }
ATTN_DEVICE uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride, uint32_t swizzle) {
  return descriptor_of((address >> 4) | (leading >> 4) << 16, (stride >> 4) | swizzle << 30);
}
ATTN_DEVICE uint64_t k_major(uint32_t address) { return descriptor(address, 16, 1024, 1); }
ATTN_DEVICE uint64_t k_major_64(uint32_t address) { return descriptor(address, 16, 512, 2); }
ATTN_DEVICE uint64_t mn_major(uint32_t address, uint32_t atom_bytes) { return descriptor(address, atom_bytes, 1024, 1); }

// Bytes of memory, one after another, to shared memory: multiples of 16 bytes, as places are.
ATTN_DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

} // namespace attn
