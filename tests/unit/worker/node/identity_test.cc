#include "worker/node/identity.h"

#include "common/base/version.h"
#include "common/io/file.h"
#include "common/rpc/server_options.h"
#include "common/tls/certificate.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "tests/unit/worker/base/test_node.h"
#include "worker/daemon/check.h"

namespace sft::worker {
namespace {

using std::chrono::hours;

class ClusterServer : public v1::ClusterService::Service {
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* info) override {
    info->set_version(kVersion);
    info->set_protocol(kProtocol);
    info->set_min_protocol(kProtocol);
    return grpc::Status::OK;
  }
};

// A server with TLS, and a node that may have joined its fleet.
class IdentityTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    const tls::Validity year{clock_.Wall() - hours(24), clock_.Wall() + hours(24 * 365)};
    authority_ = tls::MakeAuthority("fleet", year).value();
    key_ = tls::MakeKey().value();
    node_ =
        tls::SignNode(authority_, tls::MakeRequest(key_, "node-a").value(), "node-a", year).value();
    const std::string key = tls::MakeKey().value();
    grpc::SslServerCredentialsOptions tls;
    tls.pem_key_cert_pairs.push_back(
        {key, tls::SignServer(authority_, key, {"127.0.0.1"}, year).value() +
                  authority_.certificate_pem});
    grpc::ServerBuilder builder;
    rpc::SetServerOptions(builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(tls), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    options_.server = "127.0.0.1:" + std::to_string(port);
    options_.join_token_file = dir_ + "/token";
  }
  void Join() {
    Write(setup_.data_dir + "/tls/node.key", key_);
    Write(setup_.data_dir + "/tls/node.crt", node_);
    Write(setup_.data_dir + "/tls/ca.crt", authority_.certificate_pem);
  }
  void GiveToken(const std::string& fingerprint) {
    Write(dir_ + "/token", "sftjoin_1_secret_" + fingerprint + "\n");
  }
  absl::Status Open() {
    return Identity::Open({options_.server, setup_.data_dir, "node-a", options_.join_token_file},
                          clock_)
        .status();
  }
  // The line of `sft-worker check` about the server.
  std::string Check() {
    obs::CheckReport report;
    CheckServer(options_, setup_, report);
    return report.Text();
  }

  Clock& clock_ = Clock::Real();
  tls::Identity authority_;
  std::string key_, node_;
  ClusterServer service_;
  std::unique_ptr<grpc::Server> server_;
  Options options_;
};

TEST_F(IdentityTest, ANodeThatHasJoinedNeedsItsTokensFileNoMore) {
  const absl::Status stranger = Open();
  EXPECT_TRUE(absl::IsNotFound(stranger)) << stranger;
  EXPECT_NE(Message(stranger).find("--join-token-file"), std::string::npos) << stranger;
  Join();
  const absl::Status joined = Open();
  EXPECT_TRUE(joined.ok()) << joined;
  Write(dir_ + "/token", "nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument(Open())) << "a file that is there is read";
}

TEST_F(IdentityTest, ACheckOfANodeThatHasJoinedAsksTheServer) {
  Join();
  const std::string text = Check();
  EXPECT_NE(text.find(std::string("sft-server ") + kVersion), std::string::npos) << text;
  EXPECT_EQ(text.find("fail"), std::string::npos) << text;
}

TEST_F(IdentityTest, ACheckBeforeJoiningReportsTheServerAndTheNextStep) {
  options_.join_token_file.clear();
  const std::string text = Check();
  EXPECT_NE(text.find("answers with TLS; this node has not joined yet"), std::string::npos) << text;
  EXPECT_NE(text.find("--join-token-file"), std::string::npos) << text;
}

TEST_F(IdentityTest, ACheckComparesTheServerWithTheJoinTokenAndJoinsNothing) {
  GiveToken(tls::ReadCertificate(authority_.certificate_pem).value().fingerprint);
  const std::string good = Check();
  EXPECT_NE(good.find("this node joins when sft-worker starts"), std::string::npos) << good;
  GiveToken(std::string(64, 'a'));
  const std::string other = Check();
  EXPECT_NE(other.find("it is another server"), std::string::npos) << other;
  EXPECT_FALSE(io::Exists(setup_.data_dir + "/tls"));
}

TEST_F(IdentityTest, ACheckOfAServerThatIsNotThereFails) {
  server_->Shutdown();
  const std::string text = Check();
  EXPECT_NE(text.find("does not answer"), std::string::npos) << text;
}

}  // namespace
}  // namespace sft::worker
