#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "worker/channel/step_table.h"

namespace sft::rank {

// Something that took place during recorded steps.
struct TraceEvent {
  enum class Kind {
    kSpan,       // engine::PhaseSpan
    kOperation,  // of LibTorch or the engine, on the host
    kRuntime,    // call of CUDA's runtime or driver
    kKernel,
    kCopy,  // or a memset, of a GPU
  };
  Kind kind = Kind::kSpan;
  std::string name;
  // Of one clock; end is not before begin.
  int64_t begin_ns = 0, end_ns = 0;
  int64_t lane = 0;     // the thread, or the stream of a kernel or copy
  uint64_t launch = 0;  // the same for a kernel or copy and the call that launched it; 0: not known
  int path = 0;         // index into Recording::paths, made by Arrange

  bool on_gpu() const { return kind == Kind::kKernel || kind == Kind::kCopy; }
};

// Whole steps of a rank.
struct Recording {
  struct Step {
    int64_t number = 0;
    int64_t begin_ns = 0, end_ns = 0;
  };
  bool gpu = false;
  std::vector<TraceEvent> events;
  std::vector<Step> steps;
  // Spans in which an event lies, or in which it was launched, but for that of its step, from the
  // outermost: "micro-batch 1 > forward layer 3"; the first is none.
  std::vector<std::string> paths;
};

// Orders the events by their begin, outer ones first, finds the steps and the paths, and drops what
// lies in no whole step. Of the steps the first `skip` are dropped, but for the last one of all,
// and those behind the next `most`.
void Arrange(Recording& recording, int64_t skip = 0,
             int64_t most = std::numeric_limits<int64_t>::max());

// The table's part that follows from the events: steps, seconds, shares and hidden communication.
// Of an arranged recording with at least one step. Of work of a GPU that runs at the same time the
// first kind counts; of a CPU's operations that lie in each other the outermost.
channel::StepTable TableOf(const Recording& recording);

// The kind of time that an operation, kernel or copy of this name is, as TableOf has it.
std::string KindOf(std::string_view name);

}  // namespace sft::rank
