#include "worker/rank/recording.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "common/base/json.h"
#include "common/data/gzip_parts.h"
#include "common/io/file.h"
#include "worker/rank/trace_file.h"

namespace sft::rank {
namespace {

using ::testing::ElementsAre;
using Kind = TraceEvent::Kind;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kStart = 1'700'000'000'000 * kMs;  // as a clock has it

TraceEvent Event(Kind kind, std::string name, int64_t begin_ms, int64_t end_ms, int64_t lane = 1,
                 uint64_t launch = 0) {
  return {.kind = kind,
          .name = std::move(name),
          .begin_ns = kStart + begin_ms * kMs,
          .end_ns = kStart + end_ms * kMs,
          .lane = lane,
          .launch = launch};
}

// Milliseconds by kind, without those that have none.
std::map<std::string, double> SharesOf(const channel::StepTable& table) {
  std::map<std::string, double> shares;
  for (const channel::TimeShare& share : table.shares) {
    if (share.seconds > 0) shares[share.kind] = 1000 * share.seconds;
  }
  return shares;
}

double SumOf(const channel::StepTable& table) {
  return std::accumulate(table.shares.begin(), table.shares.end(), 0.0,
                         [](double sum, const auto& share) { return sum + share.seconds; });
}

// Two steps of a CPU: 100 ms and 50 ms, with 10 ms between them.
Recording OfCpu() {
  Recording recording{.events = {
                          Event(Kind::kSpan, "step 7", 0, 100),
                          Event(Kind::kSpan, "micro-batch 1", 0, 60),
                          Event(Kind::kSpan, "data 1", 0, 10),
                          Event(Kind::kOperation, "aten::copy_", 2, 5),
                          Event(Kind::kSpan, "forward layer 0", 10, 40),
                          Event(Kind::kOperation, "sft::Attention", 10, 20),
                          Event(Kind::kOperation, "aten::mm", 12, 18),
                          Event(Kind::kOperation, "sft::Gemm", 20, 35),
                          Event(Kind::kSpan, "start 5: all_reduce", 35, 36),
                          Event(Kind::kOperation, "sft::RmsNorm", 36, 40),
                          Event(Kind::kSpan, "wait 5: all_reduce", 60, 70),
                          Event(Kind::kSpan, "optimizer", 70, 90),
                          Event(Kind::kOperation, "aten::mul_", 75, 80),
                          Event(Kind::kOperation, "sft::Gemm", 102, 105),  // between the steps
                          Event(Kind::kSpan, "step 8", 110, 160),
                          Event(Kind::kOperation, "sft::Nf4Dequantize", 110, 130),
                          Event(Kind::kOperation, "sft::Gemm", 110, 160, /*lane=*/2),
                      }};
  Arrange(recording);
  return recording;
}

TEST(RecordingTest, TheTimeOfACpuGoesToTheOutermostOperations) {
  const channel::StepTable table = TableOf(OfCpu());
  EXPECT_EQ(table.first_step, 7);
  EXPECT_EQ(table.steps, 2);
  EXPECT_DOUBLE_EQ(table.seconds, 0.150);
  const std::map<std::string, double> shares = SharesOf(table);
  EXPECT_THAT(shares,
              ElementsAre(testing::Pair("attention", testing::DoubleNear(10, 1e-9)),
                          testing::Pair("communication", testing::DoubleNear(10, 1e-9)),
                          testing::Pair("data", testing::DoubleNear(10, 1e-9)),
                          testing::Pair("host", testing::DoubleNear(61, 1e-9)),
                          testing::Pair("norms and element-wise", testing::DoubleNear(4, 1e-9)),
                          testing::Pair("optimizer", testing::DoubleNear(20, 1e-9)),
                          testing::Pair("products", testing::DoubleNear(15, 1e-9)),
                          testing::Pair("quantisation", testing::DoubleNear(20, 1e-9))));
  EXPECT_NEAR(SumOf(table), table.seconds, 1e-9);
  // The all-reduce was under way beside the norm.
  EXPECT_NEAR(table.hidden_communication, 0.004, 1e-9);
}

TEST(RecordingTest, EventsAreNamedByTheSpansAroundThem) {
  const Recording recording = OfCpu();
  std::map<std::string, std::string> paths;
  for (const TraceEvent& event : recording.events) {
    paths[event.name] = recording.paths.at(event.path);
  }
  EXPECT_EQ(paths.at("sft::Attention"), "micro-batch 1 > forward layer 0");
  EXPECT_EQ(paths.at("aten::mul_"), "optimizer");
  EXPECT_EQ(paths.at("sft::Nf4Dequantize"), "");
  EXPECT_EQ(recording.events.size(), 16u) << "what lies between steps is left out";
}

TEST(RecordingTest, StepsBeforeAndBehindThoseThatAreWantedAreLeftOut) {
  Recording recording;
  for (int64_t step = 1; step <= 6; ++step) {
    const int64_t begin = 100 * step;
    recording.events.push_back(
        Event(Kind::kSpan, "step " + std::to_string(step), begin, begin + 90));
    recording.events.push_back(Event(Kind::kOperation, "sft::Gemm", begin + 1, begin + 2));
  }
  Recording few = recording;
  Arrange(recording, /*skip=*/2, /*most=*/3);
  const channel::StepTable table = TableOf(recording);
  EXPECT_EQ(table.first_step, 3);
  EXPECT_EQ(table.steps, 3);
  EXPECT_EQ(recording.events.size(), 6u);
  // At least one is kept.
  few.events.resize(4);
  Arrange(few, /*skip=*/2, /*most=*/3);
  EXPECT_EQ(TableOf(few).first_step, 2);
  EXPECT_EQ(TableOf(few).steps, 1);
}

// One step of 100 ms: what the host launches runs later, on two streams.
Recording OfGpu() {
  Recording recording{.gpu = true,
                      .events = {
                          Event(Kind::kSpan, "step 3", 0, 100),
                          Event(Kind::kSpan, "data 1", 0, 10),
                          Event(Kind::kSpan, "backward layer 4", 10, 20),
                          Event(Kind::kRuntime, "cudaLaunchKernel", 11, 12, 1, 77),
                          Event(Kind::kSpan, "optimizer", 20, 30),
                          Event(Kind::kRuntime, "cudaLaunchKernel", 21, 22, 1, 78),
                          Event(Kind::kRuntime, "cudaStreamSynchronize", 30, 95),
                          Event(Kind::kKernel, "nvjet_tst_128x256", 15, 45, 7, 77),
                          Event(Kind::kKernel, "ncclDevKernel_AllReduce", 35, 60, 20),
                          Event(Kind::kCopy, "Memcpy DtoD", 60, 65, 7),
                          Event(Kind::kKernel, "vectorized_elementwise_kernel", 70, 80, 7, 78),
                      }};
  Arrange(recording);
  return recording;
}

TEST(RecordingTest, TheTimeOfAGpuGoesToWhatRunsThere) {
  const Recording recording = OfGpu();
  const channel::StepTable table = TableOf(recording);
  EXPECT_THAT(SharesOf(table),
              ElementsAre(testing::Pair("communication", testing::DoubleNear(15, 1e-9)),
                          testing::Pair("copies", testing::DoubleNear(5, 1e-9)),
                          testing::Pair("data", testing::DoubleNear(10, 1e-9)),
                          testing::Pair("host", testing::DoubleNear(10, 1e-9)),
                          testing::Pair("idle", testing::DoubleNear(20, 1e-9)),
                          testing::Pair("optimizer", testing::DoubleNear(10, 1e-9)),
                          testing::Pair("products", testing::DoubleNear(30, 1e-9))));
  EXPECT_NEAR(SumOf(table), 0.1, 1e-9);
  EXPECT_NEAR(table.hidden_communication, 0.010, 1e-9);
  for (const TraceEvent& event : recording.events) {
    if (event.launch != 77) continue;
    EXPECT_EQ(recording.paths.at(event.path), "backward layer 4");
  }
}

TEST(RecordingTest, NamesOfKernelsAndOperationsAreOfAKind) {
  const std::map<std::string, std::string> kinds = {
      {"void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>(Params)", "attention"},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma", "attention"},
      {"sft::engine::cuda::ScanBackwardKernel<128>", "attention"},
      {"nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT", "products"},
      {"sm80_xmma_gemm_bf16bf16_bf16f32", "products"},
      {"void cutlass::device_kernel<GemmUniversal>", "products"},
      {"sft::GroupedGemm", "products"},
      {"aten::mm", "products"},
      {"sft::engine::cuda::FromNf4Kernel", "quantisation"},
      {"sft::Int8Dequantize", "quantisation"},
      {"sft::engine::cuda::AdamWKernel<float>", "optimizer"},
      {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "communication"},
      {"Memcpy HtoD (Pinned -> Device)", "copies"},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
       "copies"},
      {"sft::engine::cuda::RmsNormBackwardKernel<4>", "norms and element-wise"},
      {"sft::CrossEntropy", "norms and element-wise"},
      {"aten::mul_", "norms and element-wise"},
      {"aten::topk", "norms and element-wise"},
      {"aten::to", "copies"},
      {"aten::empty_strided", "host"},
  };
  for (const auto& [name, kind] : kinds) EXPECT_EQ(KindOf(name), kind) << name;
}

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest() : dir_(io::MakeTempDir("sft-trace-test-").value()) {}
  ~TraceFileTest() override { std::filesystem::remove_all(dir_); }

  // What gzip makes of the file.
  nlohmann::json Unpacked(const std::string& path) const {
    const std::string command = "gzip -dc " + path + " > " + dir_ + "/text";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return ParseJson(io::ReadFile(dir_ + "/text").value());
  }
  std::string dir_;
};

TEST_F(TraceFileTest, AWholeFileIsChromesTraceEvents) {
  channel::StepTable table{.rank = 2, .device = "a \"GPU\""};
  ASSERT_TRUE(WriteTraceFile(OfGpu(), dir_ + "/t.json.gz", table).ok());
  const nlohmann::json trace = Unpacked(dir_ + "/t.json.gz");
  ASSERT_TRUE(trace.is_object());
  std::map<std::string, nlohmann::json> by_name;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") by_name[event["name"]] = event;
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "rank 2, a \"GPU\"");
      EXPECT_EQ(event["pid"], 3);
    }
  }
  EXPECT_EQ(table.events, 11);
  EXPECT_EQ(table.events_left_out, 0);
  EXPECT_EQ(by_name.size(), 10u);
  const nlohmann::json& kernel = by_name.at("nvjet_tst_128x256");
  EXPECT_EQ(kernel["cat"], "kernel");
  EXPECT_EQ(kernel["dur"], 30000.0);
  EXPECT_EQ(kernel["args"]["in"], "backward layer 4");
  EXPECT_EQ(kernel["ts"].get<double>() - by_name.at("step 3")["ts"].get<double>(), 15000.0);
  EXPECT_NE(kernel["tid"], by_name.at("step 3")["tid"]);
  EXPECT_FALSE(io::Exists(dir_ + "/t.json.gz.part"));
}

TEST_F(TraceFileTest, ATraceIsCutAtItsLimitAndSaysSo) {
  Recording recording;
  recording.events.push_back(Event(Kind::kSpan, "step 1", 0, 2'000'000));
  for (int64_t i = 0; i < 400'000; ++i) {
    recording.events.push_back(
        Event(Kind::kOperation, "operation " + std::to_string(i * 7919 % 100'003), i, i + 1));
  }
  Arrange(recording);
  channel::StepTable table;
  constexpr int64_t kMost = (1 << 20) + (256 << 10);
  ASSERT_TRUE(WriteTrace(recording, dir_ + "/t", kMost, table).ok());
  EXPECT_EQ(table.events + table.events_left_out, 400'001);
  EXPECT_GT(table.events, 1'000);
  EXPECT_GT(table.events_left_out, 10'000);
  EXPECT_LE(table.trace_bytes, kMost);
  EXPECT_EQ(io::FileSize(dir_ + "/t").value(), table.trace_bytes);
  EXPECT_EQ(TableOf(recording).steps, 1) << "the table knows nothing of the limit";
}

TEST_F(TraceFileTest, AFolderThatIsGoneIsAnError) {
  channel::StepTable table;
  EXPECT_FALSE(WriteTrace(OfCpu(), dir_ + "/gone/t", 1 << 20, table).ok());
}

}  // namespace
}  // namespace sft::rank
