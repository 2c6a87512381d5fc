#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace sft::engine {

// SHA-256 over tensors' elements, in the order they are added: of any device, stride and type.
// Names and shapes are not part of it. Thread-compatible.
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

}  // namespace sft::engine
