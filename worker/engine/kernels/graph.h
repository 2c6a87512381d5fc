#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace sft::engine {

// Work that was recorded once and is enqueued as a whole, without the host's part of each piece.
class Graph {
 public:
  virtual ~Graph() = default;
  // Enqueues the work on the current stream.
  virtual void Replay() = 0;
};

// Records work. Thread-compatible.
//
// On a GPU what is recorded are kernels with the addresses that they were given: `work` is called
// once, by Record, and may neither wait nor decide anything by what tensors hold. Tensors it makes
// come from one memory of all recordings of a recorder, where a later recording takes what an
// earlier one has freed. So what the outside reads or writes must be tensors made outside, and
// tensors that pass from one recording to another must stay alive until the latter has been
// recorded; between the replays of two such no other recording is replayed.
//
// On a CPU every Replay calls `work`.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  // Gives memory that is cached for others back to the device, which Run and Record cannot do: to
  // be called before either of work that may take more than what was before.
  virtual void MakeRoom() = 0;
  // Does `work` unrecorded, in order with the current stream, with tensors of the recordings'
  // memory.
  virtual void Run(const std::function<void()>& work) = 0;
  // Nothing of `work` is done before a Replay. It must have been Run before, so that libraries have
  // loaded and chosen what they need. Throws what `work` throws, and is not to be used any more.
  virtual std::unique_ptr<Graph> Record(std::function<void()> work) = 0;
};

// Makes the recorder of a kind of device.
using GraphRecorderFactory = std::unique_ptr<GraphRecorder> (*)(c10::Device device);

// Adds or replaces that of CUDA devices, which the plugin has. Not safe to call beside
// MakeGraphRecorder.
void RegisterCudaGraphRecorder(GraphRecorderFactory factory);

// Throws InternalError for a CUDA device where the plugin was not opened.
std::unique_ptr<GraphRecorder> MakeGraphRecorder(c10::Device device);

}  // namespace sft::engine
