#pragma once

#include <memory>

#include "worker/engine/dist/communicator.h"

namespace sft::engine {

// The Gloo backend: CPU tensors over TCP. gloo.cc alone includes Gloo's headers, which are older
// than the code inside LibTorch: MakeCommunicator's check at start guards against a mismatch.
std::unique_ptr<Communicator> MakeGlooCommunicator(const Rendezvous& rendezvous, at::Device device);

}  // namespace sft::engine
