#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/base/exit_codes.h"
#include "common/io/file.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;

constexpr char kResult[] =
    R"({"form":"merged","merged_into":"nf4","compared":{"original":{"tokens":8,
        "largest_logit_difference":0.5,"mean_logit_difference":0.125,"same_likeliest_token":0.75,
        "loss_merged":2.5,"loss_as_trained":2.25},"nf4":{"mean_logit_difference":0.001}}})";

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    v1::Job trained = MakeJob("job-a", v1::Job::SUCCEEDED);
    trained.set_resolved_json(
        R"({"job":{"model":"org/tiny"},"compute":{"gpu_type":"H100"},
            "training":{"use_qlora":true},"quantization":{"bits":4,"double_quant":false},
            "data":{"columns":["prompt=ask"],"loss_on":"all"}})");
    server_.jobs["job-a"] = trained;
    server_.watches = {
        {{MakeJob("job-1", v1::Job::RUNNING), MakeJob("job-1", v1::Job::SUCCEEDED)}}};
    server_.artifact.set_name("artifacts/a");
    server_.artifact.set_kind("adapter");
    v1::ArtifactFile& file = *server_.artifact.add_files();
    file.set_path("export.json");
    file.mutable_blob()->set_size(sizeof(kResult) - 1);
    server_.artifact_files["export.json"] = kResult;
  }
  ~ExportTest() override { (void)io::RemoveAll(folder_); }

  FakeServer server_;
  const std::string folder_ = io::MakeTempDir("sft-export-test-").value();
};

TEST_F(ExportTest, AJobOfItsOwnExportsAndItsNumbersAreTold) {
  const std::string out = folder_ + "/merged/";
  const Outcome run = Sftctl(server_, {"export", "job-a", "--merged", "--type", "f32", "-o", out});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, folder_ + "/merged\n");
  EXPECT_THAT(run.err, HasSubstr("merged into the original base: logits differ from base and "
                                 "adapter by 0.5 at most and 0.125 on average, the likeliest token "
                                 "is the same after 75.00% of 8 tokens, loss 2.5000"));
  EXPECT_THAT(run.err, HasSubstr("merged into the nf4 base, the better one: "));
  ASSERT_EQ(server_.submitted.size(), 1u);
  const std::string& text = server_.submitted[0].source_text();
  for (const char* line :
       {"kind = \"export\"", "model = \"org/tiny\"", "adapter = \"job-a\"", "gpu_type = \"H100\"",
        "form = \"merged\"", "type = \"f32\"", "base = \"better\"", "trained_on = \"nf4_single\"",
        "columns = [\"prompt=ask\"]", "loss_on = \"all\""}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_EQ(server_.submitted[0].files_size(), 0) << "the server has the job's rows";
}

TEST_F(ExportTest, AFullModelIsMergedAlreadyAndCanBeGguf) {
  server_.artifact.set_kind("model");
  server_.artifact.set_node_path("/shared/job-a/model");
  Outcome run = Sftctl(server_, {"export", "job-a", "--merged", "-o", folder_ + "/a"});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_THAT(run.err, HasSubstr("delivered a full model already: `sftctl download job-a`"));
  EXPECT_TRUE(server_.submitted.empty());
  run = Sftctl(server_, {"export", "job-a", "--gguf", "-o", folder_ + "/b"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(server_.submitted.at(0).source_text(), HasSubstr("form = \"gguf\""));
  EXPECT_THAT(server_.submitted[0].source_text(), HasSubstr("model = \"/shared/job-a/model\""));
}

TEST_F(ExportTest, AFolderThatIsThereIsRefusedBeforeAnythingIsSubmitted) {
  ASSERT_TRUE(io::WriteFileAtomic(folder_ + "/mine", "x").ok());
  const Outcome run = Sftctl(server_, {"export", "job-a", "--gguf", "-o", folder_});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_THAT(run.err, HasSubstr("is not an empty folder"));
  EXPECT_TRUE(server_.submitted.empty());
}

TEST_F(ExportTest, OneFormIsAskedFor) {
  EXPECT_EQ(Sftctl(server_, {"export", "job-a"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"export", "job-a", "--merged", "--gguf"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"export", "job-a", "--vllm", "--gguf"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"export", "--merged"}).code, kUsage);
  const Outcome run = Sftctl(server_, {"export", "job-a", "--vllm", "--type", "f32"});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("--type, --base and --dataset are of merged weights"));
  EXPECT_TRUE(server_.submitted.empty());
}

TEST_F(ExportTest, AnAdapterForVllmHasNoKeysOfMergedWeights) {
  const Outcome run = Sftctl(server_, {"export", "job-a", "--vllm", "-o", folder_ + "/v"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  const std::string& text = server_.submitted.at(0).source_text();
  EXPECT_THAT(text, HasSubstr("[export]\nform = \"vllm\"\n"));
  EXPECT_THAT(text, HasSubstr("adapter = \"job-a\""));
  for (const char* key : {"\ntype =", "\nbase =", "\ntrained_on =", "\n[data]"}) {
    EXPECT_EQ(text.find(key), text.npos) << key;
  }
}

TEST_F(ExportTest, AJobThatFailsSaysWhy) {
  server_.watches = {{{MakeFailed("job-1", v1::Verdict::USER)}}};
  const Outcome run = Sftctl(server_, {"export", "job-a", "--gguf", "-o", folder_ + "/a"});
  EXPECT_EQ(run.code, kJobFailedUser);
  EXPECT_THAT(run.err, HasSubstr("failed (user)"));
  EXPECT_FALSE(io::Exists(folder_ + "/a"));
}

}  // namespace
}  // namespace sft::client
