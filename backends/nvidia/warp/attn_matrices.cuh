// Matrices between shared memory and registers, transposed on their way.
#pragma once

namespace attn {

// As load_matrices, each 8x8 matrix transposed.
ATTN_DEVICE void load_matrices_transposed(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}

}  // namespace attn
