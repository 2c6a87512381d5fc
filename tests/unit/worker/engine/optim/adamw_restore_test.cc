#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/adamw_format.h"
#include "worker/engine/optim/adamw.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kElements = 20'000;

// Optimizers over the shards of one parameter of kElements that begin at `starts`, after two steps.
class Shards {
 public:
  Shards(spec::Optimizer kind, std::vector<int64_t> starts) {
    at::manual_seed(3);
    const Tensor gradient = at::randn({kElements});
    starts.push_back(kElements);
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      const int64_t first = starts[i], count = starts[i + 1] - first;
      OptimizerParam param{.name = "p", .weight = at::zeros({count}), .id = 1, .offset = first};
      shards_.push_back(std::make_unique<AdamW>(std::vector<OptimizerParam>{param},
                                                AdamWOptions{.kind = kind, .seed = 5}));
      for (int step = 0; step < 2; ++step) {
        shards_.back()->Step(std::vector<Tensor>{gradient.narrow(0, first, count)}, 1e-3);
      }
    }
  }

  std::vector<AdamWMoments> Moments() const {
    std::vector<AdamWMoments> moments;
    for (const auto& shard : shards_) moments.push_back(shard->Moments(0));
    return moments;
  }
  void Restore(const std::vector<AdamWMoments>& saved) {
    for (const auto& shard : shards_) shard->Restore(0, saved);
  }
  // Whole, and as numbers: what AdamW itself decodes for an fp32 state.
  std::vector<Tensor> Values() const {
    Shards plain(spec::Optimizer::kAdamW, {0});
    plain.Restore(Moments());
    const AdamWMoments moments = plain.shards_[0]->Moments(0);
    return {moments.m, moments.v};
  }
  void Clear() {
    for (const AdamWMoments& moments : Moments()) {
      for (Tensor tensor : {moments.m, moments.v, moments.m_absmax, moments.v_absmax}) {
        if (tensor.defined()) tensor.zero_();
      }
    }
  }

 private:
  std::vector<std::unique_ptr<AdamW>> shards_;
};

void ExpectEqual(const Shards& actual, const Shards& expected) {
  const std::vector<Tensor> a = actual.Values(), b = expected.Values();
  EXPECT_TRUE(at::equal(a[0], b[0]));
  EXPECT_TRUE(at::equal(a[1], b[1]));
}

TEST(AdamWRestoreTest, TheSameShardsGetTheSameBits) {
  for (const auto kind :
       {spec::Optimizer::kAdamW, spec::Optimizer::kAdamWBf16, spec::Optimizer::kAdamW8bit}) {
    const Shards saved(kind, {0, 7'001, 12'345});
    Shards other(kind, {0, 7'001, 12'345});
    other.Clear();
    other.Restore(saved.Moments());
    const std::vector<AdamWMoments> a = other.Moments(), b = saved.Moments();
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(at::equal(a[i].m, b[i].m));
      EXPECT_TRUE(at::equal(a[i].v, b[i].v));
      ASSERT_EQ(a[i].m_absmax.defined(), kind == spec::Optimizer::kAdamW8bit);
      if (a[i].m_absmax.defined()) {
        EXPECT_TRUE(at::equal(a[i].m_absmax, b[i].m_absmax));
        EXPECT_TRUE(at::equal(a[i].v_absmax, b[i].v_absmax));
      }
    }
  }
}

TEST(AdamWRestoreTest, OtherCutsOfFloatsKeepEveryBit) {
  for (const auto kind : {spec::Optimizer::kAdamW, spec::Optimizer::kAdamWBf16}) {
    const Shards saved(kind, {0, 7'001, 12'345});
    Shards other(kind, {0, 1, 9'999});
    other.Clear();
    other.Restore(saved.Moments());
    ExpectEqual(other, saved);
  }
}

TEST(AdamWRestoreTest, BlocksOfCodesThatLieInSavedOnesKeepEveryBit) {
  const int64_t aligned = 40 * kOptimizerBlock;
  const Shards saved(spec::Optimizer::kAdamW8bit, {0, aligned});
  Shards other(spec::Optimizer::kAdamW8bit, {0, aligned / 2});
  other.Clear();
  other.Restore(saved.Moments());
  ExpectEqual(other, saved);
}

TEST(AdamWRestoreTest, OtherBlocksOfCodesAreCodedAnewWithinAStepOfTheMap) {
  const Shards saved(spec::Optimizer::kAdamW8bit, {0, 7'001});
  Shards other(spec::Optimizer::kAdamW8bit, {0, 9'999});
  other.Clear();
  other.Restore(saved.Moments());
  const std::vector<Tensor> a = other.Values(), b = saved.Values();
  for (int i : {0, 1}) {
    const double difference = (a[i] - b[i]).abs().max().item<double>();
    EXPECT_GT(difference, 0.0);
    // Half of the map's largest step, 0.0176, times the largest value.
    EXPECT_LT(difference, 0.0089 * b[i].abs().max().item<double>());
  }
  // Shards too small for codes hold floats.
  Shards small(spec::Optimizer::kAdamW8bit, {0, 16'000});
  small.Restore(saved.Moments());
  EXPECT_FALSE(small.Moments()[1].m_absmax.defined());
}

TEST(AdamWRestoreTest, AMissingElementIsAnError) {
  const Shards saved(spec::Optimizer::kAdamW, {0, 7'001, 12'345});
  std::vector<AdamWMoments> moments = saved.Moments();
  moments.erase(moments.begin() + 1);
  Shards other(spec::Optimizer::kAdamW, {0});
  EXPECT_THROW(other.Restore(moments), InternalError);
}

}  // namespace
}  // namespace sft::engine
