#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "worker/engine/dist/communicator.h"

// Proof that ranks hold the same weights, and that what is delivered is what was trained.

namespace sft::engine {

// SHA-256 over tensors' elements, in the order they are added: of any device, stride and type. Names
// and shapes are not part of it. Thread-compatible.
class TensorHasher {
 public:
  TensorHasher();
  ~TensorHasher();
  TensorHasher(const TensorHasher&) = delete;
  TensorHasher& operator=(const TensorHasher&) = delete;

  void Add(const at::Tensor& tensor);
  // 64 hexadecimal digits; ends the hash.
  std::string Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether `hash` is equal on all ranks. Hashes of all ranks must have equal length.
bool EqualOnAllRanks(Communicator& comm, std::string_view hash);

}  // namespace sft::engine
