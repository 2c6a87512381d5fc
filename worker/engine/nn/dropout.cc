#include "worker/engine/nn/dropout.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

namespace sft::engine {

namespace {

at::Generator MakeGenerator(const at::Device& device, uint64_t seed) {
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator generator = at::globalContext()
                                .getAcceleratorHooksInterface(device.type())
                                .getNewGenerator(device.index());
  generator.set_current_seed(seed);
  return generator;
}

}  // namespace

uint64_t MixSeed(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15ULL + b + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

DropoutKey DropoutKey::Of(uint64_t job_seed, int64_t step, int micro, int rank) {
  const uint64_t place = MixSeed(static_cast<uint64_t>(step), (static_cast<uint64_t>(rank) << 32) |
                                                                  static_cast<uint32_t>(micro));
  return {MixSeed(job_seed, place)};
}

at::Tensor Dropout(const at::Tensor& x, double p, const DropoutKey& key, uint64_t module) {
  if (p == 0.0) return x;
  at::Tensor mask = at::empty_like(x);
  mask.bernoulli_(1.0 - p, MakeGenerator(x.device(), MixSeed(key.seed, module)));
  return mask.mul_(1.0 / (1.0 - p)).mul_(x);
}

void AddNoise(at::Tensor& rows, double bound, const DropoutKey& key, uint64_t module) {
  at::Tensor noise = at::empty_like(rows);
  noise.uniform_(-bound, bound, MakeGenerator(rows.device(), MixSeed(key.seed, module)));
  rows.add_(noise);
}

}  // namespace sft::engine
