// RUN: not attn-opt %s -p 'tile-schedule{target=abacus}' 2>&1 | FileCheck %s
// CHECK: tile-schedule: no schedule for target 'abacus' (targets: amd, cpu, nvidia)

func.func @attention(%x: f32) -> f32 {
  return %x : f32
}
