#include "worker/hub/model_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/unit/worker/hub/fake_hub.h"

namespace sft::worker {
namespace {

// Passes requests on to a hub that the test keeps.
class Way : public hub::HttpClient {
 public:
  explicit Way(hub::HttpClient& to) : to_(to) {}
  absl::StatusOr<hub::HttpResponse> Send(const hub::HttpRequest& request) override {
    return to_.Send(request);
  }

 private:
  hub::HttpClient& to_;
};

class ModelStoreTest : public testing::Test {
 protected:
  ModelStoreTest() {
    hub_.files = {{"config.json", "{}"},
                  {"tokenizer.json", "{ }"},
                  {"model.safetensors", std::string(5000, 'w')}};
    setup_.cache_dir = dir_.path();
    Open();
  }
  void Open() {
    ModelStore::Reserve reserve;
    store_ = *ModelStore::Open(setup_, reserve, std::make_unique<Way>(hub_.http), clock_);
    store_->SetInUse([this] {
      if (on_look_) on_look_();
      return used_;
    });
  }
  absl::Status Fetch(const std::string& name = "org/name") {
    return store_->Fetch(*hub::ParseModelName(name), "", {}, {}).status();
  }
  std::string Folder(const std::string& model = "name") const {
    return dir_.path() + "/models--org--" + model;
  }
  bool IsMarked() const { return io::Exists(Folder() + "/.sft-downloaded"); }
  // A model that was downloaded here long ago.
  void MakeOld(const std::string& model, size_t bytes) {
    ASSERT_TRUE(io::MakeDirs(Folder(model) + "/blobs").ok());
    ASSERT_TRUE(io::WriteFileAtomic(Folder(model) + "/blobs/b", std::string(bytes, 'o')).ok());
    const std::string mark = Folder(model) + "/.sft-downloaded";
    ASSERT_TRUE(io::WriteFileAtomic(mark, "").ok());
    const timespec old[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, mark.c_str(), old, 0), 0);
  }

  TempFolder dir_;
  FakeHub hub_;
  PatientClock clock_;
  HubSetup setup_;
  std::set<std::string> used_;
  std::function<void()> on_look_;  // called when the store asks what is in use
  std::unique_ptr<ModelStore> store_;
};

TEST_F(ModelStoreTest, AModelIsMarkedAsOursBeforeAByteComesAndCanBeRemoved) {
  const auto answer = hub_.http.answer;
  int marked = 0;
  hub_.http.answer = [&](const hub::HttpRequest& request) {
    marked += IsMarked() ? 1 : 0;
    return answer(request);
  };
  ASSERT_TRUE(Fetch().ok());
  EXPECT_EQ(marked, static_cast<int>(hub_.http.requests.size()));
  ASSERT_TRUE(store_->Remove("org/name").ok());
  EXPECT_TRUE(io::ListDir(dir_.path())->size() == 2) << "CACHEDIR.TAG and .locks";
}

TEST_F(ModelStoreTest, WhatALifeLeftBeforeItsMarkIsOursAndAnotherProgramsFolderIsNot) {
  ASSERT_TRUE(io::MakeDirs(Folder()).ok());
  ASSERT_TRUE(Fetch().ok());
  EXPECT_TRUE(IsMarked());
  ASSERT_TRUE(store_->Remove("org/name").ok());
  ASSERT_TRUE(io::MakeDirs(Folder() + "/blobs").ok());
  int published = 0;
  store_->SetPublish([&](const std::string&) {
    ++published;
    return absl::OkStatus();
  });
  ASSERT_TRUE(Fetch().ok());
  EXPECT_FALSE(IsMarked());
  EXPECT_EQ(published, 0) << "its modes are the other program's";
  EXPECT_TRUE(absl::IsNotFound(store_->Remove("org/name")));
  EXPECT_TRUE(io::Exists(Folder()));
  ASSERT_TRUE(io::RemoveAll(Folder()).ok());
  ASSERT_TRUE(Fetch().ok());
  EXPECT_EQ(published, 1);
}

TEST_F(ModelStoreTest, AModelThatTheHubDoesNotHaveLeavesNothing) {
  hub_.http.answer = [](const hub::HttpRequest&) { return hub::FakeHttp::Make(404, "{}"); };
  EXPECT_TRUE(absl::IsNotFound(Fetch()));
  EXPECT_FALSE(io::Exists(Folder()));
}

TEST_F(ModelStoreTest, RoomIsMadeByWhatIsNotInUse) {
  setup_.cache_limit = 8000;
  Open();
  MakeOld("used", 2000);
  MakeOld("old", 2000);
  used_ = {"org/used"};
  ASSERT_TRUE(Fetch().ok());
  EXPECT_TRUE(io::Exists(Folder("used")));
  EXPECT_FALSE(io::Exists(Folder("old")));
}

TEST_F(ModelStoreTest, WhoDoesNotKnowWhatIsInUseRemovesNothing) {
  setup_.cache_limit = 6000;
  setup_.makes_room = false;
  ASSERT_TRUE(io::MakeDirs(dir_.path() + "/.removing-models--org--x").ok());
  Open();
  MakeOld("old", 2000);
  const absl::Status status = Fetch();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(Message(status).find("no other model is removed"), std::string::npos) << status;
  EXPECT_NE(Message(status).find("sftctl models rm"), std::string::npos) << status;
  EXPECT_TRUE(io::Exists(Folder("old") + "/blobs/b"));
  EXPECT_TRUE(io::Exists(dir_.path() + "/.removing-models--org--x")) << "a daemon removes it";
}

TEST_F(ModelStoreTest, AJobThatComesWhileItsModelIsBeingRemovedKeepsIt) {
  ASSERT_TRUE(Fetch().ok());
  int looks = 0;
  on_look_ = [&] {
    if (++looks == 2) used_ = {"org/name"};  // it has found the folder a moment ago
  };
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Remove("org/name")));
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(io::ReadFile(Folder() + "/snapshots/" + hub_.commit + "/config.json").value_or(""),
            "{}");
  used_.clear();
  on_look_ = [&] { EXPECT_EQ(io::Exists(Folder()), ++looks == 3); };
  EXPECT_TRUE(store_->Remove("org/name").ok());
  EXPECT_EQ(looks, 4) << "it was looked again when the folder was out of the way";
}

TEST_F(ModelStoreTest, RoomIsMadeByTheNextWhereAJobComesMeanwhile) {
  setup_.cache_limit = 8000;
  Open();
  MakeOld("a", 2000);
  MakeOld("b", 2000);
  int looks = 0;
  on_look_ = [&] {
    if (++looks == 2) used_ = {"org/a"};
  };
  ASSERT_TRUE(Fetch().ok());
  EXPECT_TRUE(io::Exists(Folder("a") + "/blobs/b"));
  EXPECT_FALSE(io::Exists(Folder("b")));
}

TEST_F(ModelStoreTest, WhatARemovalLeftGoesAtTheNextStart) {
  const std::string left = dir_.path() + "/.removing-models--org--x";
  ASSERT_TRUE(io::MakeDirs(left + "/blobs").ok());
  MakeOld("x", 10);
  Open();
  EXPECT_FALSE(io::Exists(left));
  EXPECT_TRUE(io::Exists(Folder("x")));
}

}  // namespace
}  // namespace sft::worker
