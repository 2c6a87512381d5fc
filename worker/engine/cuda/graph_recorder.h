#pragma once

#include <memory>

#include "worker/engine/kernels/graph.h"

namespace sft::engine::cuda {

// CUDA graphs, captured on a stream of their own in one memory pool. Other threads may call CUDA
// meanwhile. Record first gives back to the driver what the allocator caches, which a capture that
// finds too little memory cannot do.
std::unique_ptr<GraphRecorder> MakeGraphRecorder(c10::Device device);

}  // namespace sft::engine::cuda
