#include "client/base/server_choice.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>

#include "common/rpc/server_options.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

// A server of a generation, on a port of its own.
class NumberedServer : public v1::ClusterService::Service {
 public:
  explicit NumberedServer(int64_t generation) : generation_(generation) {
    grpc::ServerBuilder builder;
    rpc::SetServerOptions(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* info) override {
    info->set_generation(generation_);
    return grpc::Status::OK;
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void End() { server_->Shutdown(std::chrono::system_clock::time_point()); }

 private:
  const int64_t generation_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

ServerCandidate Candidate(const std::string& address) { return {address, rpc::Security()}; }

TEST(ServerChoiceTest, TheHighestGenerationOfThoseThatAnswerServes) {
  NumberedServer old(1), now(7), unnumbered(0);
  const std::vector<ServerCandidate> all = {Candidate(old.address()), Candidate(now.address()),
                                            Candidate(unnumbered.address())};
  EXPECT_EQ(ChooseServer(all), 1u);
  now.End();
  EXPECT_EQ(ChooseServer(all), 0u);
  old.End();
  EXPECT_EQ(ChooseServer(all), 2u) << "of an earlier release, and the only one";
  unnumbered.End();
  EXPECT_EQ(ChooseServer(all), 0u) << "the first, for the error to name";
}

TEST(ServerChoiceTest, OneWithoutALoginIsNotAsked) {
  NumberedServer only(1);
  const std::vector<ServerCandidate> all = {{"x:1", FailedPrecondition("log in first")},
                                            Candidate(only.address())};
  EXPECT_EQ(ChooseServer(all), 1u);
  EXPECT_EQ(ChooseServer({{"x:1", FailedPrecondition("log in first")}}), 0u);
}

TEST(ServerChoiceTest, AnAddressWithCommasIsSeveralCandidates) {
  setenv("XDG_CONFIG_HOME", TestFolder().c_str(), 1);
  const std::vector<ServerCandidate> two = CandidatesOf("127.0.0.1:1,127.0.0.1:2");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].address, "127.0.0.1:2");
  EXPECT_TRUE(two[1].security.ok());
  EXPECT_FALSE(CandidatesOf("far.example.org:1")[0].security.ok());
  unsetenv("XDG_CONFIG_HOME");
}

}  // namespace
}  // namespace sft::client
