#include "server/jobs/model_pin.h"

#include "common/hub/model_name.h"
#include "server/scheduling/scheduler_input.h"
#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

const std::string kCommit(40, 'a');

class ModelPinTest : public IntakeTest {
 protected:
  // A node with CPUs, whose worker downloads models, or is of a release that knew none of that.
  void JoinNode(const std::string& name, const std::string& path, bool downloads) {
    v1::Register said = RegisterOf(name, "CPU", 2);
    if (downloads) said.mutable_facts()->mutable_hub()->set_endpoint("https://hub");
    if (!path.empty()) {
      v1::Model* model = said.add_models();
      model->set_id("org/tiny");
      model->set_path(path);
      model->set_config_json(kConfig);
    }
    ASSERT_TRUE(registry_->Connect(said, std::make_shared<FakeWorker>()).ok());
  }
  v1::ResolveJobResponse Resolve(const std::string& model, int nodes = 1) {
    std::string text = kJobFile;
    text.replace(text.find("/models/tiny"), 12, model);
    v1::ResolveJobRequest request;
    request.set_file_name("job.toml");
    request.set_source_text(text);
    Set(request, "compute.nodes", std::to_string(nodes));
    Set(request, "compute.gpu_count", std::to_string(2 * nodes));
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return *response;
  }
  static std::string ModelOf(const v1::ResolveJobResponse& response) {
    for (const v1::ResolvedValue& value : response.resolved()) {
      if (value.key() == "job.model") return value.value() + " (" + value.origin() + ")";
    }
    return "none";
  }
  static std::string SnapshotPath() { return "/hub/models--org--tiny/snapshots/" + kCommit; }
};

TEST_F(ModelPinTest, ANameAloneIsTheCommitThatANodeHas) {
  JoinNode("a", SnapshotPath(), /*downloads=*/true);
  EXPECT_EQ(ModelOf(Resolve("org/tiny")),
            "org/tiny@" + kCommit + " (derived: the commit that node a has)");
  const auto given = Resolve("org/tiny@" + kCommit);
  EXPECT_EQ(ModelOf(given).find("org/tiny@" + kCommit), 0u);
  EXPECT_EQ(given.problems_size(), 0);
}

TEST_F(ModelPinTest, WhereNoNodeDownloadsNothingIsPinned) {
  JoinNode("a", SnapshotPath(), /*downloads=*/false);
  EXPECT_EQ(ModelOf(Resolve("org/tiny")).find("org/tiny ("), 0u);
  const auto missing = Resolve("org/none");
  ASSERT_EQ(missing.problems_size(), 1);
  EXPECT_NE(missing.problems(0).message().find("--model-cache"), std::string::npos);
}

TEST_F(ModelPinTest, AFolderThatSomebodyCopiedStaysAName) {
  JoinNode("a", "/models/org/tiny", /*downloads=*/true);
  EXPECT_EQ(ModelOf(Resolve("org/tiny")).find("org/tiny ("), 0u);
}

TEST_F(ModelPinTest, WhatCannotBeAskedIsAWarningOrOverSeveralNodesAProblem) {
  JoinNode("a", "", /*downloads=*/true);
  JoinNode("b", "", /*downloads=*/true);
  const auto one = Resolve("org/new");
  EXPECT_EQ(one.problems_size(), 0);
  ASSERT_EQ(one.warnings_size(), 1);
  EXPECT_NE(one.warnings(0).message().find("could not be asked"), std::string::npos);
  const auto two = Resolve("org/new", 2);
  ASSERT_EQ(two.problems_size(), 1);
  EXPECT_NE(two.problems(0).message().find("give it as org/new@COMMIT"), std::string::npos);
  EXPECT_EQ(two.problems(0).line(), 2);
  EXPECT_EQ(Resolve("org/new@" + kCommit, 2).problems_size(), 0);
}

TEST_F(ModelPinTest, WorkersOfEarlierReleasesAreNotGivenCommits) {
  JoinNode("new", SnapshotPath(), /*downloads=*/true);
  JoinNode("old", SnapshotPath(), /*downloads=*/false);
  std::map<std::string, std::vector<std::string>> models;
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(const SchedulerInput input,
                                         ReadSchedulerInput(db, *registry_, 0, Nanos(0)));
                    for (const auto& node : input.snapshot.nodes) models[node.name] = node.models;
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(models["new"], (std::vector<std::string>{"org/tiny", "org/tiny@" + kCommit}));
  EXPECT_EQ(models["old"], (std::vector<std::string>{"org/tiny"}));
}

TEST_F(ModelPinTest, AJobThatGoesOnKeepsTheModelOfItsCheckpoints) {
  JoinNode("a", SnapshotPath(), /*downloads=*/true);
  const std::string other = "org/tiny@" + std::string(40, 'b');
  const auto model_of = [&](const std::string& now, const std::string& before) {
    JobRecord resumed;
    resumed.model = before;
    spec::Resolution resolution;
    resolution.spec.job.model = now;
    EXPECT_TRUE(PinModel(planner_.fleet(), nullptr, "local", &resumed, resolution).ok());
    EXPECT_TRUE(resolution.problems.empty());
    return resolution.spec.job.model;
  };
  EXPECT_EQ(model_of("org/tiny", other), other);
  EXPECT_EQ(model_of("org/tiny@main", other), other) << "main may be another commit by now";
  EXPECT_EQ(model_of("org/tiny", "org/tiny"), "org/tiny") << "begun before nodes downloaded";
  const std::string third = "org/tiny@" + std::string(40, 'c');
  EXPECT_EQ(model_of(third, other), third) << "which the check of fixed keys refuses";
}

TEST(ModelNameTest, TwoNamesMayMeanTheSameFilesUnlessTheyNameTwoCommits) {
  const std::string a = "org/m@" + std::string(40, 'a'), b = "org/m@" + std::string(40, 'b');
  EXPECT_TRUE(hub::MayBeSame("org/m", a));
  EXPECT_TRUE(hub::MayBeSame(a, "org/m@main"));
  EXPECT_TRUE(hub::MayBeSame(a, a));
  EXPECT_TRUE(hub::MayBeSame("/models/m", "/models/m"));
  EXPECT_FALSE(hub::MayBeSame(a, b));
  EXPECT_FALSE(hub::MayBeSame("org/m", "org/n"));
  EXPECT_FALSE(hub::MayBeSame("/models/m", "org/m"));
}

TEST_F(ModelPinTest, AProjectsTokenIsKeptInAFileOfItsOwn) {
  HubModels hub({.token = "of the server", .token_dir = dir_ + "/hub-tokens"}, clock_);
  EXPECT_EQ(*hub.TokenOf("vision"), "of the server");
  ASSERT_TRUE(hub.SetToken("vision", "hf_vision").ok());
  EXPECT_EQ(*hub.TokenOf("vision"), "hf_vision");
  EXPECT_EQ(*hub.TokenOf("speech"), "of the server");
  EXPECT_TRUE(hub.HasToken("vision"));
  for (const std::string& bad : {std::string("two words"), std::string("line\n"),
                                 std::string(5000, 'x'), std::string("\xc3\xa9")}) {
    const absl::Status refused = hub.SetToken("vision", bad);
    EXPECT_TRUE(absl::IsInvalidArgument(refused));
    EXPECT_EQ(Message(refused).find(bad), std::string::npos);
  }
  ASSERT_TRUE(hub.SetToken("vision", "").ok());
  EXPECT_FALSE(hub.HasToken("vision"));
  HubModels offline({.offline = true}, clock_);
  EXPECT_TRUE(absl::IsUnavailable(offline.Ask({"org/tiny", ""}, "").status()));
}

}  // namespace
}  // namespace sft::server
