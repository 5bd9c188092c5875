// Parameter server: rank 0 gathers everybody's tensors, adds them up and sends the sum back. The way data-parallel training began, kept as
// the measured comparison: 2(p-1) n bytes pass through one rank, where the ring moves 2(p-1)/p n through each.
//
// M. Li, D. G. Andersen, J. W. Park et al.: Scaling distributed machine learning with the parameter server, OSDI 2014; in its simplest
// form, with one server that is also a worker.
//
// It is the direct exchange with everything in one block, so rank 0 owns it all and the others own nothing.
//
//           rank 0           rank 1           rank 2           rank 3
//   step 0                   1 -> 0           2 -> 0           3 -> 0
//   step 1  0+1+(2+3) -> 1
//   step 2  0+1+(2+3) -> 2
//   step 3  0+1+(2+3) -> 3
//   end     0+1+(2+3)        0+1+(2+3)        0+1+(2+3)        0+1+(2+3)
//
// Cost at rank 0: 2(p-1) alpha + (p-1) n (2 beta + gamma).
// Order: the balanced binary tree over rank index: the same bits as recursive doubling and direct exchange.
// Needs: direct::allreduce_scratch_bytes.
#pragma once

#include "collectives/direct/allreduce.hpp"

namespace guozhuang::parameter_server {

/// plan.blocks: one block. Throws Error(internal) for more.
template <Wire W>
void allreduce(W& wire, const AllreducePlan& plan) {
    if (plan.blocks.count() != 1) throw Error(ErrorCode::internal, "parameter_server takes the bundle as one block");
    direct::allreduce(wire, plan);
}

}  // namespace guozhuang::parameter_server
