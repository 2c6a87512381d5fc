#include "worker/engine/weights/tensor_cut.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/weights/quant_format.h"

namespace sft::engine {
namespace {

using at::Tensor;

// A parameter as ranks have it: its whole shape, a rank's, and the linears that are joined in it.
struct Cut {
  const char* name;
  int ranks;
  std::vector<int64_t> whole, own;
  std::vector<int64_t> joined = {};
};

ModelLayout LayoutOf(const std::vector<int64_t>& shape, const std::vector<int64_t>& joined) {
  ParamInfo param{"u.weight", shape, ParamRole::kLinear, false, true};
  param.joined = joined;
  return {{{"u", {param}}}};
}

std::vector<ParamInfo> PartsOf(const Cut& cut) {
  std::vector<ParamInfo> parts;
  for (int rank = 0; rank < cut.ranks; ++rank) {
    parts.push_back(
        CutOver(LayoutOf(cut.whole, cut.joined), LayoutOf(cut.own, cut.joined), cut.ranks, rank)
            .units[0]
            .params[0]);
  }
  return parts;
}

Tensor Counting(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return at::arange(elements, at::kFloat).view(shape);
}

const Cut kCuts[] = {
    {"Rows", 4, {24, 10}, {6, 10}},
    {"Columns", 4, {6, 40}, {6, 10}},
    {"Bias", 2, {12}, {6}},
    {"Whole", 3, {7, 5}, {7, 5}},
    {"Joined", 2, {24, 6}, {12, 6}, {12, 4, 8}},
    {"FewHeads", 4, {6, 5}, {3, 5}},  // two ranks have the same
};

class TensorCutTest : public testing::TestWithParam<Cut> {};

TEST_P(TensorCutTest, ThePartsOfAllRanksAreTheWhole) {
  const Tensor whole = Counting(GetParam().whole);
  const std::vector<ParamInfo> params = PartsOf(GetParam());
  std::vector<Tensor> parts;
  for (const ParamInfo& param : params) {
    parts.push_back(PartOf(param, whole));
    EXPECT_EQ(parts.back().sizes(), at::IntArrayRef(GetParam().own));
  }
  for (const ParamInfo& param : params) EXPECT_TRUE(at::equal(WholeOf(param, parts), whole));
}

TEST_P(TensorCutTest, AnyElementsOfAPartAreReadAndSaved) {
  const Tensor whole = Counting(GetParam().whole).view({-1});
  for (const ParamInfo& param : PartsOf(GetParam())) {
    const Tensor part = PartOf(param, whole).view({-1});
    for (int64_t first = 0; first < part.numel(); ++first) {
      for (int64_t count = 0; first + count <= part.numel(); ++count) {
        const Tensor expected = part.narrow(0, first, count);
        const auto read = [&](int64_t from, int64_t size) { return whole.narrow(0, from, size); };
        ASSERT_TRUE(at::equal(ReadPart(param, first, count, read), expected)) << first;
        // As a checkpoint's pieces come together again.
        Tensor again = at::zeros_like(expected);
        int64_t copied = 0;
        for (const CutRange& range : RangesOf(param, first, count)) {
          copied += CopyCommon(WholeRange(param), whole, range,
                               again.narrow(0, range.begin, range.count));
        }
        ASSERT_EQ(copied, count);
        ASSERT_TRUE(at::equal(again, expected)) << first << ", " << count;
      }
    }
  }
}

// What one number of ranks saved another reads, however each cuts it.
TEST(TensorCutTest, PartsOfOneCutFillThoseOfAnother) {
  const std::vector<int64_t> shape = {12, 24};
  const Tensor whole = Counting(shape);
  const std::vector<Cut> cuts = {{"", 1, shape, shape},
                                 {"", 2, shape, {6, 24}},
                                 {"", 3, shape, {4, 24}},
                                 {"", 2, shape, {12, 12}},
                                 {"", 4, shape, {12, 6}}};
  for (const Cut& from : cuts) {
    for (const Cut& to : cuts) {
      for (const ParamInfo& target : PartsOf(to)) {
        const Tensor expected = PartOf(target, whole).view({-1});
        Tensor filled = at::zeros_like(expected);
        int64_t copied = 0;
        for (const ParamInfo& source : PartsOf(from)) {
          const Tensor part = PartOf(source, whole).view({-1});
          for (const CutRange& a : RangesOf(source, 0, part.numel())) {
            for (const CutRange& b : RangesOf(target, 0, filled.numel())) {
              copied += CopyCommon(a, part.narrow(0, a.begin, a.count), b,
                                   filled.narrow(0, b.begin, b.count));
            }
          }
        }
        EXPECT_EQ(copied, filled.numel());
        EXPECT_TRUE(at::equal(filled, expected));
      }
    }
  }
}

TEST(TensorCutTest, AShapeThatIsNoPartIsRefused) {
  for (const std::vector<int64_t>& own :
       {std::vector<int64_t>{5, 8}, {6, 4}, {4, 8}, {12, 5}, {24, 8}}) {
    EXPECT_THROW(PartsOf({"", 2, {12, 8}, own}), InternalError) << own[0] << "x" << own[1];
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, TensorCutTest, testing::ValuesIn(kCuts),
                         [](const auto& info) { return std::string(info.param.name); });

// The bytes that a rank takes of a whole weight give the numbers that one rank would have there.
TEST(TakeTest, PartsOfQuantisedWeightsHaveTheBitsOfTheWhole) {
  const auto alone = MakeLocalCommunicator(at::kCPU);
  const std::vector<int64_t> shape = {96, 768};
  const Tensor weight =
      at::randn(shape, at::detail::createCPUGenerator(5), at::kFloat).to(at::kBFloat16);
  const Cut cuts[] = {{"", 3, shape, {32, 768}},
                      {"", 2, shape, {48, 768}, {64, 32}},
                      {"", 6, shape, {96, 128}},
                      {"", 4, shape, {96, 192}}};
  struct Form {
    std::unique_ptr<QuantFormat> whole, part;
    int64_t unit;
  };
  std::vector<Form> forms;
  forms.push_back({MakeNf4Format(true), MakeNf4Format(false), 64});
  forms.push_back({MakeNf4Format(false), MakeNf4Format(false), 64});
  forms.push_back({MakeInt8Format(), MakeInt8Format(), 1});
  for (const Form& form : forms) {
    const int64_t elements = weight.numel();
    const QuantizedPart bytes =
        form.whole->Quantize(weight.view({-1}), shape[1], {&elements, 1}, *alone);
    Tensor expected = at::empty(shape, at::kFloat);
    form.whole->Dequantize(expected, bytes.planes, bytes.constants);
    for (const Cut& cut : cuts) {
      for (const ParamInfo& param : PartsOf(cut)) {
        const QuantizedPart own = form.part->Take(bytes, param, 0, param.numel());
        // A rank that holds a shard of its part takes the end of it by itself.
        const int64_t first = param.numel() / 2 / form.unit * form.unit;
        const QuantizedPart end = form.part->Take(bytes, param, first, param.numel() - first);
        for (size_t plane = 0; plane < own.planes.size(); ++plane) {
          const int64_t count = end.planes[plane].numel();
          EXPECT_TRUE(
              at::equal(own.planes[plane].narrow(0, own.planes[plane].numel() - count, count),
                        end.planes[plane]));
        }
        std::vector<Tensor> padded;
        for (size_t plane = 0; plane < own.planes.size(); ++plane) {
          const int64_t size =
              form.part->CutUnits(param.numel()) * form.part->planes()[plane].per_cut_unit;
          Tensor values = at::zeros({size}, own.planes[plane].options());
          values.narrow(0, 0, own.planes[plane].numel()).copy_(own.planes[plane]);
          padded.push_back(values);
        }
        Tensor values = at::empty(param.shape, at::kFloat);
        form.part->Dequantize(values, padded, own.constants);
        EXPECT_TRUE(at::equal(values, PartOf(param, expected)));
      }
    }
  }
}

}  // namespace
}  // namespace sft::engine
