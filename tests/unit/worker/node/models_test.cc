#include "worker/node/models.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "common/base/utf8.h"
#include "tests/unit/worker/base/test_node.h"

namespace sft::worker {
namespace {

using ModelsTest = TestNode;

TEST_F(ModelsTest, AnIdIsFoundInTheModelFoldersOneOrTwoLevelsDeep) {
  MakeModel(dir_ + "/models/org/name");
  EXPECT_EQ(*ResolveModel("tiny", setup_), dir_ + "/models/tiny");
  EXPECT_EQ(*ResolveModel("org/name", setup_), dir_ + "/models/org/name");
}

TEST_F(ModelsTest, AnIdIsFoundInAHubCacheThroughItsMainReference) {
  setup_.hub_dirs = {dir_ + "/hub"};
  const std::string cached = dir_ + "/hub/models--org--cached";
  MakeModel(cached + "/snapshots/abc");
  MakeModel(cached + "/snapshots/old");
  Write(cached + "/refs/main", "abc\n");
  EXPECT_EQ(*ResolveModel("org/cached", setup_), cached + "/snapshots/abc");
}

TEST_F(ModelsTest, ARevisionIsFoundByItsCommitOrReferenceAndListedBesideMain) {
  setup_.hub_dirs = {dir_ + "/hub"};
  const std::string cached = dir_ + "/hub/models--org--cached";
  const std::string main(40, 'a'), other(40, 'b'), half(40, 'c');
  MakeModel(cached + "/snapshots/" + main);
  MakeModel(cached + "/snapshots/" + other);
  // config.json is the last that a download brings.
  Write(cached + "/snapshots/" + half + "/tokenizer.json", "{}");
  Write(cached + "/refs/main", main);
  Write(cached + "/refs/v2", other);
  EXPECT_EQ(*ResolveModel("org/cached@" + other, setup_), cached + "/snapshots/" + other);
  EXPECT_EQ(*ResolveModel("org/cached@v2", setup_), cached + "/snapshots/" + other);
  EXPECT_EQ(*ResolveModel("org/cached@main", setup_), cached + "/snapshots/" + main);
  EXPECT_TRUE(absl::IsNotFound(ResolveModel("org/cached@v3", setup_).status()));
  EXPECT_TRUE(absl::IsNotFound(ResolveModel("org/cached@" + half, setup_).status()));
  std::vector<std::string> ids;
  for (const v1::Model& model : ListModels(setup_)) ids.push_back(model.id());
  EXPECT_EQ(ids, (std::vector<std::string>{"tiny", "org/cached", "org/cached@" + other}));
}

TEST_F(ModelsTest, ASnapshotThatLacksFilesOfItsTreeIsRefusedByName) {
  setup_.hub_dirs = {dir_ + "/hub"};
  const std::string cached = dir_ + "/hub/models--org--cached";
  const std::string commit(40, 'a');
  MakeModel(cached + "/snapshots/" + commit);
  const auto entry = [](const char* path, int size) {
    return fmt::format(R"("{}": {{"size": {}, "blob_id": "{}"}})", path, size,
                       std::string(40, 'b'));
  };
  Write(cached + "/trees/" + commit + ".json",
        R"({"format_version": 1, "files": {)" + entry("config.json", 22) + "," +
            entry("README.md", 9) + "," + entry("model.safetensors", 1000) + "," +
            entry("special_tokens_map.json", 1) + "," + entry("tokenizer.json", 2) + "}}");
  const absl::Status status = ResolveModel("org/cached", setup_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(Message(status).find(
                "special_tokens_map.json and 1 more of 4 files that jobs need are missing"),
            std::string::npos)
      << status;
}

TEST_F(ModelsTest, TheModelFoldersGoBeforeTheHubCache) {
  setup_.hub_dirs = {dir_ + "/hub"};
  MakeModel(dir_ + "/hub/models--tiny/snapshots/abc");
  EXPECT_EQ(*ResolveModel("tiny", setup_), dir_ + "/models/tiny");
}

TEST_F(ModelsTest, AnUnknownIdSaysWhereItWasLookedFor) {
  const absl::Status status = ResolveModel("org/none", setup_).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(Message(status).find(dir_ + "/models"), std::string::npos) << status;
}

TEST_F(ModelsTest, APathOutsideTheRootsIsRefusedAlsoThroughALink) {
  MakeModel(dir_ + "/elsewhere/secret");
  EXPECT_TRUE(absl::IsPermissionDenied(ResolveModel(dir_ + "/elsewhere/secret", setup_).status()));
  ASSERT_EQ(symlink((dir_ + "/elsewhere/secret").c_str(), (dir_ + "/models/link").c_str()), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(ResolveModel(dir_ + "/models/link", setup_).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(
      ResolveModel(dir_ + "/models/../elsewhere/secret", setup_).status()));
}

TEST_F(ModelsTest, ALinkOutOfTheRootsIsRefusedByIdAndPathAndListed) {
  MakeModel(dir_ + "/elsewhere/secret");
  ASSERT_EQ(symlink((dir_ + "/elsewhere/secret").c_str(), (dir_ + "/models/link").c_str()), 0);
  EXPECT_FALSE(ResolveModel("link", setup_).ok());
  EXPECT_FALSE(ResolveModel(dir_ + "/models/link", setup_).ok());
  std::string problem;
  for (const v1::Model& model : ListModels(setup_)) {
    if (model.id() == "link") problem = model.problem();
  }
  EXPECT_NE(problem.find("below an allowed folder"), std::string::npos) << problem;
  ASSERT_EQ(symlink((dir_ + "/models/tiny").c_str(), (dir_ + "/models/again").c_str()), 0);
  EXPECT_TRUE(ResolveModel("again", setup_).ok());
  EXPECT_TRUE(ResolveModel(dir_ + "/models/again", setup_).ok());
}

TEST_F(ModelsTest, AModelFileThatLeadsOutOrIsNotRegularIsRefused) {
  const std::string file = dir_ + "/models/tiny/tokenizer_config.json";
  Write(dir_ + "/elsewhere/secret", "{}");
  ASSERT_EQ(symlink((dir_ + "/elsewhere/secret").c_str(), file.c_str()), 0);
  EXPECT_FALSE(ResolveModel("tiny", setup_).ok());
  ASSERT_EQ(unlink(file.c_str()), 0);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_FALSE(ResolveModel("tiny", setup_).ok());
  ASSERT_EQ(unlink(file.c_str()), 0);
  EXPECT_TRUE(ResolveModel("tiny", setup_).ok());
  const std::string config = dir_ + "/models/tiny/config.json";
  ASSERT_EQ(unlink(config.c_str()), 0);
  ASSERT_EQ(mkfifo(config.c_str(), 0600), 0);
  EXPECT_EQ(ListModels(setup_).size(), 1U) << "the list waits for nobody to write into a pipe";
}

// Text that is not UTF-8 ends the node's stream.
TEST_F(ModelsTest, AFolderWhoseNameIsNotUtf8IsListedWithThatProblem) {
  std::filesystem::copy(dir_ + "/models/tiny", dir_ + "/models/ti\xffny");
  bool listed = false;
  for (const v1::Model& model : ListModels(setup_)) {
    EXPECT_TRUE(IsUtf8(model.id() + model.path() + model.problem()));
    listed = listed || model.problem() == "its folder's name is not UTF-8";
  }
  EXPECT_TRUE(listed);
}

TEST_F(ModelsTest, FilesThatNobodyReadsAreNotChecked) {
  const std::string tiny = dir_ + "/models/tiny";
  ASSERT_EQ(symlink("nowhere", (tiny + "/.gitattributes").c_str()), 0);
  ASSERT_EQ(symlink("/etc/passwd", (tiny + "/README.md").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", (tiny + "/original.pth").c_str()), 0);
  ASSERT_EQ(mkfifo((tiny + "/pipe").c_str(), 0600), 0);
  EXPECT_TRUE(ResolveModel("tiny", setup_).ok()) << ResolveModel("tiny", setup_).status();
  // Files that are copied along with a trained model are read.
  ASSERT_EQ(symlink("/etc/passwd", (tiny + "/merges.txt").c_str()), 0);
  EXPECT_FALSE(ResolveModel("tiny", setup_).ok());
  ASSERT_EQ(unlink((tiny + "/merges.txt").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", (tiny + "/chat_template.jinja").c_str()), 0);
  const absl::Status dangling = ResolveModel("tiny", setup_).status();
  EXPECT_NE(Message(dangling).find("chat_template.jinja"), std::string::npos) << dangling;
}

TEST_F(ModelsTest, WeightsInASubfolderMayNotLeadOutEither) {
  const std::string tiny = dir_ + "/models/tiny";
  Write(dir_ + "/elsewhere/secret", Safetensors(64));
  ASSERT_TRUE(io::MakeDirs(tiny + "/sub").ok());
  ASSERT_EQ(symlink((dir_ + "/elsewhere/secret").c_str(), (tiny + "/sub/w.safetensors").c_str()),
            0);
  Write(tiny + "/model.safetensors.index.json", R"({"weight_map":{"w":"sub/w.safetensors"}})");
  EXPECT_TRUE(ResolveModel("tiny", setup_).ok())
      << "beside model.safetensors the index is not read";
  ASSERT_TRUE(io::RemoveAll(tiny + "/model.safetensors").ok());
  const absl::Status status = ResolveModel("tiny", setup_).status();
  EXPECT_NE(Message(status).find("below an allowed folder"), std::string::npos) << status;
}

// A hub cache as its library writes it: the files are links to blobs.
std::string MakeHubModel(const std::string& cached) {
  const std::string snapshot = cached + "/snapshots/0123abc";
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    EXPECT_TRUE(io::MakeDirs(cached + "/blobs").ok());
    EXPECT_TRUE(io::MakeDirs(snapshot).ok());
    const std::string blob = std::string("blob-of-") + name;
    EXPECT_EQ(rename((cached + "/" + name).c_str(), (cached + "/blobs/" + blob).c_str()), 0);
    EXPECT_EQ(symlink(("../../blobs/" + blob).c_str(), (snapshot + "/" + name).c_str()), 0);
  }
  return snapshot;
}

TEST_F(ModelsTest, OneSnapshotOfAHubCacheMayBeTheModelFolder) {
  const std::string cached = dir_ + "/hub/models--org--cached";
  MakeModel(cached);
  const std::string snapshot = MakeHubModel(cached);
  for (const std::string& named : {snapshot, cached}) {
    setup_.model_dirs = setup_.roots = {named};
    const std::vector<v1::Model> models = ListModels(setup_);
    ASSERT_EQ(models.size(), 1u) << named;
    EXPECT_EQ(models[0].id(), "org/cached");
    EXPECT_EQ(models[0].problem(), "");
    EXPECT_EQ(ResolveModel("org/cached", setup_).value_or(""), snapshot);
    EXPECT_EQ(ResolveModel(snapshot, setup_).value_or(""), snapshot);
  }
  // A link to it gets the name that the operator used.
  ASSERT_EQ(symlink(snapshot.c_str(), (dir_ + "/mine").c_str()), 0);
  setup_.model_dirs = setup_.roots = {dir_ + "/mine"};
  EXPECT_EQ(ListModels(setup_)[0].id(), "mine");
  EXPECT_TRUE(ResolveModel("mine", setup_).ok()) << ResolveModel("mine", setup_).status();
}

TEST_F(ModelsTest, AModelWhoseFilesLieElsewhereSaysWhatTheOperatorCanDo) {
  const std::string tiny = dir_ + "/models/tiny";
  Write(dir_ + "/elsewhere/config.json", "{}");
  ASSERT_EQ(unlink((tiny + "/config.json").c_str()), 0);
  ASSERT_EQ(symlink((dir_ + "/elsewhere/config.json").c_str(), (tiny + "/config.json").c_str()), 0);
  const absl::Status status = ResolveModel("tiny", setup_).status();
  EXPECT_NE(Message(status).find("--data-root"), std::string::npos) << status;
}

TEST_F(ModelsTest, HugeFoldersAreListedInPartWithANote) {
  for (int i = 0; i < 10; ++i) {
    const std::string folder = fmt::format("{}/models/a{}", dir_, i);
    ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
    for (int j = 0; j < 1000; ++j) {
      ASSERT_EQ(mkdir(fmt::format("{}/{:03}", folder, j).c_str(), 0700), 0);
    }
  }
  MakeModel(dir_ + "/models/zz/last");
  std::map<std::string, std::string> problems;
  for (const v1::Model& model : ListModels(setup_)) problems[model.id()] = model.problem();
  EXPECT_FALSE(problems.contains("zz/last"));
  EXPECT_NE(problems["models"].find("10000 entries"), std::string::npos) << problems["models"];
  EXPECT_TRUE(ResolveModel("zz/last", setup_).ok()) << "it is found where it is named";
}

TEST_F(ModelsTest, ModelsBeyondTheLimitAreToldNotSilentlyCut) {
  const std::string folder = setup_.model_dirs.front();
  const size_t before = ListModels(setup_).size();
  for (size_t i = before; i < kMaxModels; ++i) {
    ASSERT_TRUE(io::MakeDirs(fmt::format("{}/many-{:03}", folder, i)).ok());
    ASSERT_TRUE(
        io::WriteFileAtomic(fmt::format("{}/many-{:03}/config.json", folder, i), "{}").ok());
  }
  ASSERT_EQ(ListModels(setup_).size(), kMaxModels);
  for (const char* name : {"zz-1", "zz-2"}) {
    ASSERT_TRUE(io::MakeDirs(folder + "/" + name).ok());
    ASSERT_TRUE(io::WriteFileAtomic(folder + "/" + name + "/config.json", "{}").ok());
  }
  const std::vector<v1::Model> models = ListModels(setup_);
  ASSERT_EQ(models.size(), kMaxModels + 1);
  EXPECT_EQ(models.back().id(), "2 more");
  EXPECT_EQ(models.back().path(), folder + "/zz-1");
  EXPECT_NE(models.back().problem().find("offers 256 models at most"), std::string::npos)
      << models.back().problem();
}

TEST_F(ModelsTest, ACopyThatJobsCanUseIsTakenBeforeABrokenOne) {
  setup_.hub_dirs = {dir_ + "/hub"};
  const std::string cached = dir_ + "/hub/models--org--twice/snapshots/" + std::string(40, 'a');
  MakeModel(dir_ + "/models/org/twice");
  MakeModel(cached);
  EXPECT_EQ(ResolveModel("org/twice", setup_).value_or(""), dir_ + "/models/org/twice");
  Write(dir_ + "/models/org/twice/model.safetensors", "cut");
  EXPECT_EQ(ResolveModel("org/twice", setup_).value_or(""), cached);
  const auto listed = [&] {
    for (const v1::Model& model : ListModels(setup_)) {
      if (model.id() == "org/twice") return model;
    }
    return v1::Model();
  };
  EXPECT_EQ(listed().problem(), "");
  EXPECT_EQ(listed().path(), cached);
  Write(cached + "/model.safetensors", "cut");
  EXPECT_TRUE(absl::IsInvalidArgument(ResolveModel("org/twice", setup_).status()));
  EXPECT_NE(listed().problem(), "");
}

TEST_F(ModelsTest, AnIdCannotLeaveTheModelFolders) {
  MakeModel(dir_ + "/elsewhere");
  EXPECT_FALSE(ResolveModel("../elsewhere", setup_).ok());
}

struct Damage {
  const char* name;
  const char* file;
  const char* text;     // nullptr: remove the file
  const char* problem;  // part of it

  friend void PrintTo(const Damage& d, std::ostream* out) { *out << d.name; }
};

class BrokenModel : public TestNode, public testing::WithParamInterface<Damage> {};

TEST_P(BrokenModel, IsRefusedWithWhatIsWrong) {
  const std::string path = dir_ + "/models/tiny/" + GetParam().file;
  if (GetParam().text == nullptr) {
    ASSERT_TRUE(io::RemoveAll(path).ok());
  } else {
    Write(path, GetParam().text);
  }
  if (path.ends_with("index.json")) {
    ASSERT_TRUE(io::RemoveAll(dir_ + "/models/tiny/model.safetensors").ok());
  }
  const absl::Status status = ResolveModel("tiny", setup_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(Message(status).find(GetParam().problem), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(
    Damages, BrokenModel,
    testing::Values(
        Damage{"NoTokenizer", "tokenizer.json", nullptr, "tokenizer.json is missing"},
        Damage{"NoWeights", "model.safetensors", nullptr, "no safetensors weights"},
        Damage{"WeightsOfThreeBytes", "model.safetensors", "abc",
               "model.safetensors is truncated: 3 bytes"},
        Damage{"WeightsAreJson", "model.safetensors", "{\"not\": \"one\"}",
               "is not a safetensors file"},
        Damage{"WeightsAreEmpty", "model.safetensors", "", "model.safetensors is truncated: 0"},
        Damage{"ConfigIsEmpty", "config.json", "", "config.json is not a JSON object"},
        Damage{"ConfigIsAList", "config.json", "[1]", "config.json is not a JSON object"},
        Damage{"PartIsMissing", "model.safetensors.index.json",
               R"({"weight_map":{"w":"part-2.safetensors"}})", "part-2.safetensors is missing"},
        Damage{"PartOutsideTheFolder", "model.safetensors.index.json",
               R"({"weight_map":{"w":"../../x"}})", "names a file that it may not"},
        Damage{"IndexWithoutMap", "model.safetensors.index.json", "{}", "has no weight_map"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(ModelsTest, AFileCutShortIsNamedWithBothSizes) {
  const std::string whole = Safetensors(64);
  Write(dir_ + "/models/tiny/model.safetensors", whole.substr(0, whole.size() - 10));
  const absl::Status status = ResolveModel("tiny", setup_).status();
  EXPECT_NE(Message(status).find("is truncated: " + std::to_string(whole.size() - 10) +
                                 " bytes of " + std::to_string(whole.size())),
            std::string::npos)
      << status;
}

TEST_F(ModelsTest, ALinkThatLeadsToItselfIsNamed) {
  const std::string tiny = dir_ + "/models/tiny";
  for (const std::string file : {"model.safetensors", "tokenizer.json"}) {
    ASSERT_EQ(rename((tiny + "/" + file).c_str(), (dir_ + "/kept").c_str()), 0);
    ASSERT_EQ(symlink(file.c_str(), (tiny + "/" + file).c_str()), 0);
    const absl::Status status = ResolveModel("tiny", setup_).status();
    EXPECT_NE(Message(status).find("/models/tiny/" + file), std::string::npos) << status;
    ASSERT_EQ(unlink((tiny + "/" + file).c_str()), 0);
    ASSERT_EQ(rename((dir_ + "/kept").c_str(), (tiny + "/" + file).c_str()), 0);
  }
  ASSERT_EQ(symlink("loop", (dir_ + "/models/loop").c_str()), 0);
  EXPECT_EQ(ListModels(setup_).size(), 1U);
  EXPECT_FALSE(ResolveModel(dir_ + "/models/loop", setup_).ok());
}

TEST_F(ModelsTest, ATokenizerMayBeInOtherFiles) {
  const std::string tiny = dir_ + "/models/tiny";
  ASSERT_TRUE(io::RemoveAll(tiny + "/tokenizer.json").ok());
  Write(tiny + "/vocab.json", "{}");
  const std::string problem(Message(ResolveModel("tiny", setup_).status()));
  EXPECT_NE(problem.find("vocab.json with merges.txt"), std::string::npos) << problem;
  Write(tiny + "/merges.txt", "");
  EXPECT_TRUE(ResolveModel("tiny", setup_).ok());
  ASSERT_TRUE(io::RemoveAll(tiny + "/merges.txt").ok());
  Write(tiny + "/tokenizer.model", "");
  EXPECT_TRUE(ResolveModel("tiny", setup_).ok());
}

TEST_F(ModelsTest, TheListHasEveryModelOnceWithItsProblem) {
  setup_.hub_dirs = {dir_ + "/hub", dir_ + "/does-not-exist"};
  MakeModel(dir_ + "/models/org/broken");
  ASSERT_TRUE(io::RemoveAll(dir_ + "/models/org/broken/tokenizer.json").ok());
  MakeModel(dir_ + "/hub/models--org--cached/snapshots/abc");
  MakeModel(dir_ + "/hub/models--tiny/snapshots/abc");
  const std::vector<v1::Model> models = ListModels(setup_);
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0].id(), "org/broken");
  EXPECT_NE(models[0].problem().find("tokenizer.json is missing"), std::string::npos);
  EXPECT_EQ(models[1].id(), "tiny");
  EXPECT_EQ(models[1].problem(), "");
  EXPECT_EQ(models[1].path(), dir_ + "/models/tiny");
  EXPECT_EQ(models[1].config_json(), R"({"model_type":"llama"})");
  EXPECT_GT(models[1].bytes(), 64);
  EXPECT_EQ(models[1].hash().size(), 64u);
  EXPECT_EQ(models[2].id(), "org/cached");
}

}  // namespace
}  // namespace sft::worker
