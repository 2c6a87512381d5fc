#include "worker/node/removed_models.h"

#include <gtest/gtest.h>

#include "common/io/file.h"

namespace sft::worker {
namespace {

class RemovedModelsTest : public testing::Test {
 protected:
  RemovedModelsTest() : root_(*io::MakeTempDir("models-")) {
    setup_.shared_dir = root_ + "/shared";
  }
  ~RemovedModelsTest() override { EXPECT_TRUE(io::RemoveAll(root_).ok()); }

  std::string Make(const std::string& below) {
    const std::string path = root_ + "/" + below;
    EXPECT_TRUE(io::MakeDirs(path).ok());
    EXPECT_TRUE(io::WriteFileAtomic(path + "/file", "x").ok());
    return path;
  }
  void Remove(const std::string& path, const std::set<std::string>& live = {}) {
    v1::Desired desired;
    desired.add_removed_models(path);
    EXPECT_TRUE(RemoveModels(desired, live, setup_).ok());
  }

  const std::string root_;
  NodeSetup setup_;
};

TEST_F(RemovedModelsTest, OnlyTheNamedModelIsDeleted) {
  const std::string model = Make("shared/job-a/model"), other = Make("shared/job-b/model");
  const std::string checkpoints = Make("shared/job-a/checkpoints");
  Remove(model);
  EXPECT_FALSE(io::Exists(model));
  EXPECT_TRUE(io::Exists(other));
  EXPECT_TRUE(io::Exists(checkpoints));
  Remove(model);
}

TEST_F(RemovedModelsTest, WhatAKilledExportHasLeftGoesWithItsModel) {
  const std::string model = Make("shared/job-a/model");
  const std::string work = Make("shared/job-a/model.work/uid");
  Remove(model, {"job-a"});
  EXPECT_TRUE(io::Exists(work)) << "the job lives";
  Remove(model);
  EXPECT_FALSE(io::Exists(root_ + "/shared/job-a/model.work"));
  Make("shared/job-a/model.work/uid");
  Remove(model);
  EXPECT_FALSE(io::Exists(root_ + "/shared/job-a/model.work")) << "without a model, too";
}

TEST_F(RemovedModelsTest, OtherFoldersStay) {
  const std::string model = Make("shared/job-a/model");
  const std::string outside = Make("outside/job-a/model");
  const std::string deep = Make("shared/job-a/x/model");
  for (const std::string& path :
       {outside, deep, Make("shared/model"), setup_.shared_dir + "/job-a",
        setup_.shared_dir + "/../outside/job-a/model", setup_.shared_dir + "/../model"}) {
    Remove(path);
  }
  EXPECT_TRUE(io::Exists(outside + "/file"));
  EXPECT_TRUE(io::Exists(deep + "/file"));
  EXPECT_TRUE(io::Exists(model + "/file"));
  EXPECT_TRUE(io::Exists(root_ + "/shared/model/file"));
}

TEST_F(RemovedModelsTest, AModelOfALiveJobStays) {
  const std::string model = Make("shared/job-a/model");
  Remove(model, {"job-a"});
  EXPECT_TRUE(io::Exists(model));
}

}  // namespace
}  // namespace sft::worker
