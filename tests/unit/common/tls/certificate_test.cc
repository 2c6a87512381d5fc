#include "common/tls/certificate.h"

#include <gtest/gtest.h>

namespace sft::tls {
namespace {

using std::chrono::hours;

const WallTime kNow = FromUnixMicros(1'800'000'000'000'000);
const Validity kYear{kNow - hours(24), kNow + hours(24 * 365)};

class CertificateTest : public testing::Test {
 protected:
  CertificateTest() : authority_(MakeAuthority("fleet", kYear).value()), key_(MakeKey().value()) {}
  std::string Node(const std::string& name, const Validity& validity = kYear) {
    return SignNode(authority_, MakeRequest(key_, "whatever").value(), name, validity).value();
  }

  const Identity authority_;
  const std::string key_;
};

TEST_F(CertificateTest, ANodesCertificateHasTheNameThatTheAuthorityGivesAndTheKeyOfTheRequest) {
  const Certificate read = ReadCertificate(Node("gpu-7")).value();
  EXPECT_EQ(read.common_name, "gpu-7");
  EXPECT_EQ(read.key_sha256, KeyOfPrivate(key_).value());
  EXPECT_EQ(read.key_sha256, KeyOfRequest(MakeRequest(key_, "x").value()).value());
  EXPECT_EQ(read.validity.to, kYear.to);
  EXPECT_TRUE(Verify(Node("gpu-7"), authority_.certificate_pem, Purpose::kNode, kNow).ok());
}

TEST_F(CertificateTest, AServersCertificateIsForItsNamesAndAddresses) {
  const std::string pem =
      SignServer(authority_, key_, {"sft.example.org", "10.0.0.1", "::1"}, kYear).value();
  const Certificate read = ReadCertificate(pem).value();
  EXPECT_EQ(read.names, (std::vector<std::string>{"sft.example.org", "10.0.0.1", "::1"}));
  EXPECT_TRUE(Verify(pem, authority_.certificate_pem, Purpose::kServer, kNow).ok());
}

TEST_F(CertificateTest, ANameThatWouldAddAnotherOneIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      SignServer(authority_, key_, {"a,DNS:bank.example"}, kYear).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SignServer(authority_, key_, {}, kYear).status()));
}

TEST_F(CertificateTest, ANodesCertificateIsNotAcceptedAsAServers) {
  const absl::Status as_server =
      Verify(Node("gpu-7"), authority_.certificate_pem, Purpose::kServer, kNow);
  EXPECT_TRUE(absl::IsUnauthenticated(as_server)) << as_server;
}

TEST_F(CertificateTest, AnotherFleetsCertificateIsRefused) {
  const Identity other = MakeAuthority("fleet", kYear).value();
  EXPECT_TRUE(
      absl::IsUnauthenticated(Verify(Node("a"), other.certificate_pem, Purpose::kNode, kNow)));
}

TEST_F(CertificateTest, AnExpiredCertificateIsReportedWithTheCurrentTime) {
  const std::string pem = Node("a", {kNow, kNow + hours(1)});
  const auto verify = [&](WallTime now) {
    return std::string(Message(Verify(pem, authority_.certificate_pem, Purpose::kNode, now)));
  };
  EXPECT_EQ(verify(kNow + hours(2)).find("the certificate expired at 2027-01-15T09:00:00"), 0u)
      << verify(kNow + hours(2));
  EXPECT_EQ(verify(kNow - hours(2)).find("the certificate is good only from 2027-01-15T08:00:00"),
            0u)
      << verify(kNow - hours(2));
}

TEST_F(CertificateTest, ARequestThatItsKeyDidNotSignIsRefused) {
  std::string pem = MakeRequest(key_, "a").value();
  const size_t middle = pem.size() - 60;  // inside the signature
  pem[middle] = pem[middle] == 'A' ? 'B' : 'A';
  EXPECT_TRUE(absl::IsInvalidArgument(KeyOfRequest(pem).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SignNode(authority_, pem, "a", kYear).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KeyOfRequest("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadCertificate("nonsense").status()));
}

TEST_F(CertificateTest, ATextIsSignedByOneKeyAndChecksWithItsCertificate) {
  const std::string signature = SignText(authority_.key_pem, "generation 7").value();
  EXPECT_TRUE(IsSignedBy(authority_.certificate_pem, "generation 7", signature));
  EXPECT_FALSE(IsSignedBy(authority_.certificate_pem, "generation 8", signature));
  EXPECT_FALSE(
      IsSignedBy(MakeAuthority("other", kYear)->certificate_pem, "generation 7", signature));
  EXPECT_FALSE(IsSignedBy(authority_.certificate_pem, "generation 7", ""));
  EXPECT_FALSE(IsSignedBy(authority_.certificate_pem, "generation 7", signature + "x"));
  EXPECT_FALSE(IsSignedBy("nonsense", "generation 7", signature));
  EXPECT_FALSE(SignText("nonsense", "generation 7").ok());
}

}  // namespace
}  // namespace sft::tls
