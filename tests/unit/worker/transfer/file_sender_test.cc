#include "worker/transfer/file_sender.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "common/io/file.h"
#include "tests/unit/worker/transfer/fake_server.h"

namespace sft::worker {
namespace {

// Records what was sent; the test waits for it.
class RecordingServer : public FakeServer {
 public:
  absl::Status SendFile(const v1::FetchFile&, const std::string& path,
                        const std::string& error) override {
    const MutexLock lock(mutex_);
    path_ = path;
    error_ = error;
    done_ = true;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  // The path that was sent; empty when the file was refused.
  std::string Wait() {
    const MutexLock lock(mutex_);
    while (!done_) changed_.Wait(mutex_);
    done_ = false;
    EXPECT_EQ(path_.empty(), !error_.empty());
    return path_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string path_, error_;
  bool done_ = false;
};

TEST(FileSenderTest, OnlyTheSharedFolderAndTextFilesOfModelsBelowTheRootsAreSent) {
  const std::string dir = *io::MakeTempDir("file-sender");
  for (const char* folder : {"/shared", "/models/m", "/other"}) {
    ASSERT_TRUE(io::MakeDirs(dir + folder).ok());
    ASSERT_TRUE(io::WriteFileAtomic(dir + folder + "/config.json", "{}").ok());
    ASSERT_TRUE(io::WriteFileAtomic(dir + folder + "/tokenizer.json", "{}").ok());
    ASSERT_TRUE(io::WriteFileAtomic(dir + folder + "/weights", "w").ok());
  }
  NodeSetup setup;
  setup.shared_dir = dir + "/shared";
  setup.roots = {dir + "/models"};
  RecordingServer server;
  FileSender sender(setup, server);
  const auto sent = [&](const std::string& path) {
    v1::FetchFile request;
    request.set_path(dir + path);
    sender.Send(request);
    return server.Wait();
  };
  EXPECT_EQ(sent("/shared/weights"), dir + "/shared/weights");
  EXPECT_EQ(sent("/models/m/config.json"), dir + "/models/m/config.json");
  EXPECT_EQ(sent("/models/m/tokenizer.json"), dir + "/models/m/tokenizer.json");
  EXPECT_EQ(sent("/models/m/weights"), "");
  EXPECT_EQ(sent("/other/tokenizer.json"), "");
  EXPECT_EQ(sent("/other/config.json"), "");
  EXPECT_EQ(sent("/models/m/../../other/config.json"), "");
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

TEST(FileSenderTest, FilesOfSnapshotsInHubCachesAreSentToOtherNodes) {
  const std::string dir = *io::MakeTempDir("file-sender");
  const std::string model = dir + "/hub/models--org--m", snapshot = model + "/snapshots/c";
  ASSERT_TRUE(io::MakeDirs(snapshot).ok());
  ASSERT_TRUE(io::MakeDirs(model + "/blobs").ok());
  ASSERT_TRUE(io::MakeDirs(dir + "/shared").ok());
  ASSERT_TRUE(io::WriteFileAtomic(model + "/blobs/b", "w").ok());
  ASSERT_TRUE(io::WriteFileAtomic(dir + "/token", "t").ok());
  ASSERT_EQ(symlink("../../blobs/b", (snapshot + "/weights").c_str()), 0);
  ASSERT_EQ(symlink((dir + "/token").c_str(), (snapshot + "/token").c_str()), 0);
  NodeSetup setup;
  setup.shared_dir = dir + "/shared";
  setup.hub_dirs = {dir + "/hub"};
  RecordingServer server;
  FileSender sender(setup, server);
  const auto sent = [&](const std::string& path) {
    v1::FetchFile request;
    request.set_path(path);
    sender.Send(request);
    return server.Wait();
  };
  EXPECT_EQ(sent(snapshot + "/weights"), model + "/blobs/b");
  EXPECT_EQ(sent(snapshot + "/token"), "") << "links do not lead out of the cache";
  EXPECT_EQ(sent(snapshot + "/../../../../token"), "");
  EXPECT_EQ(sent(model + "/blobs/b"), "") << "no file of a snapshot";
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

// A link below the roots leads wherever its owner likes. The worker's shared folder lies in its
// data folder, and its roots are the whole machine.
TEST(FileSenderTest, ADevelopmentWorkerSendsTheModelsThatItsRanksTrained) {
  const std::string dir = *io::MakeTempDir("file-sender");
  const std::string model = "/shared/job-abcdefgh23/model";
  ASSERT_TRUE(io::MakeDirs(dir + model).ok());
  ASSERT_TRUE(io::WriteFileAtomic(dir + model + "/weights", "w").ok());
  ASSERT_TRUE(io::WriteFileAtomic(dir + "/secret", "s").ok());
  NodeSetup setup;
  setup.data_dir = dir;
  setup.shared_dir = dir + "/shared";
  setup.roots = {"/"};
  RecordingServer server;
  FileSender sender(setup, server);
  v1::FetchFile request;
  request.mutable_folders()->add_jobs("job-abcdefgh23");
  request.set_path(dir + model + "/weights");
  sender.Send(request);
  EXPECT_EQ(server.Wait(), dir + model + "/weights");
  request.set_path(dir + "/secret");
  sender.Send(request);
  EXPECT_EQ(server.Wait(), "");
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

TEST(FileSenderTest, ALinkLeadsIntoNoOtherJobsFolderThanTheServerNames) {
  const std::string dir = *io::MakeTempDir("file-sender");
  const std::string model = "/shared/job-abcdefgh23/model";
  ASSERT_TRUE(io::MakeDirs(dir + model).ok());
  ASSERT_TRUE(io::WriteFileAtomic(dir + model + "/config.json", "{}").ok());
  ASSERT_TRUE(io::MakeDirs(dir + "/shared/links").ok());
  ASSERT_EQ(symlink((dir + model).c_str(), (dir + "/shared/links/m").c_str()), 0);
  NodeSetup setup;
  setup.shared_dir = dir + "/shared";
  setup.roots = {dir + "/shared"};
  RecordingServer server;
  FileSender sender(setup, server);
  v1::FetchFile request;
  const auto sent = [&](const std::string& path) {
    request.set_path(dir + path);
    sender.Send(request);
    return server.Wait();
  };
  const std::string file = dir + model + "/config.json";
  EXPECT_EQ(sent("/shared/links/m/config.json"), file) << "a server of the version before";
  request.mutable_folders();
  EXPECT_EQ(sent("/shared/links/m/config.json"), "");
  EXPECT_EQ(sent(model + "/config.json"), "");
  request.mutable_folders()->add_jobs("job-abcdefgh23");
  EXPECT_EQ(sent("/shared/links/m/config.json"), file);
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

}  // namespace
}  // namespace sft::worker
