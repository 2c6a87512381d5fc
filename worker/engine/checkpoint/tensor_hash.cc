#include "worker/engine/checkpoint/tensor_hash.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

namespace sft::engine {
namespace {

constexpr int kMostThreads = 8;

io::Sha256::Digest Hash(const at::Tensor& tensor) {
  io::Sha256 sha;
  if (tensor.numel() > 0) sha.Update(tensor.const_data_ptr(), tensor.nbytes());
  return sha.Finish();
}

}  // namespace

TensorHasher::TensorHasher()
    : threads_(static_cast<size_t>(std::clamp(at::get_num_threads(), 1, kMostThreads))) {}

void TensorHasher::TakeFirst() {
  const io::Sha256::Digest digest = running_.front().get();
  running_.pop_front();
  sha_.Update(digest.data(), digest.size());
}

void TensorHasher::Add(const at::Tensor& tensor) {
  if (running_.size() == threads_) TakeFirst();
  running_.push_back(
      std::async(std::launch::async, Hash, tensor.detach().to(at::kCPU).contiguous()));
}

std::string TensorHasher::Finish() {
  while (!running_.empty()) TakeFirst();
  return sha_.FinishHex();
}

}  // namespace sft::engine
