#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <future>
#include <string>

#include "common/io/sha256.h"

namespace sft::engine {

// The SHA-256 of the SHA-256 of each tensor's elements, in the order they are added: of any device,
// stride and type. Names and shapes are not part of it. Tensors are hashed on threads of their own,
// as many at a time as the rank computes with (at::get_num_threads), eight at most.
// Thread-compatible.
class TensorHasher {
 public:
  TensorHasher();

  // A tensor of the host is kept and must not change until Finish.
  void Add(const at::Tensor& tensor);
  // 64 hexadecimal digits; ends the hash.
  std::string Finish();

 private:
  void TakeFirst();

  size_t threads_;
  std::deque<std::future<io::Sha256::Digest>> running_;
  io::Sha256 sha_;
};

}  // namespace sft::engine
