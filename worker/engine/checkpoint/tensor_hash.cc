#include "worker/engine/checkpoint/tensor_hash.h"

#include <ATen/ATen.h>

#include "common/io/sha256.h"

namespace sft::engine {

struct TensorHasher::Impl {
  io::Sha256 sha;
};

TensorHasher::TensorHasher() : impl_(std::make_unique<Impl>()) {}
TensorHasher::~TensorHasher() = default;

void TensorHasher::Add(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
  if (host.numel() > 0) impl_->sha.Update(host.const_data_ptr(), host.nbytes());
}

std::string TensorHasher::Finish() { return impl_->sha.FinishHex(); }

}  // namespace sft::engine
