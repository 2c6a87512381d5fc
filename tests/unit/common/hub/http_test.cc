#include "common/hub/http.h"

#include <gtest/gtest.h>

#include <map>

namespace sft::hub {
namespace {

TEST(HttpTest, AnOriginIsSchemeHostAndPort) {
  EXPECT_EQ(OriginOf("https://Hub.Example.org/a?b"), "https://hub.example.org");
  EXPECT_EQ(OriginOf("https://h:443/a"), "https://h");
  EXPECT_EQ(OriginOf("http://h:8080"), "http://h:8080");
  EXPECT_EQ(OriginOf("http://h/x@y"), "http://h");
  EXPECT_EQ(OriginOf("ftp://h/x"), "");
  EXPECT_EQ(OriginOf("/path"), "");
}

TEST(HttpTest, AnAddressThatProgramsReadDifferentlyHasNoOrigin) {
  for (const char* url :
       {"http://user:word@h/x", "https://evil.example\\@hub.co/x", "https://evil.example\\.hub.co",
        "https://hub.co/a\\b", "https://evil.example @hub.co/x", " https://hub.co/x",
        "https://hub.co\t/x", "https://hub.co/x\ny", "https://hub.co/x\x7f", "https://u@hub.co"}) {
    EXPECT_EQ(OriginOf(url), "") << url;
    EXPECT_EQ(Follow("https://hub.co/a/b", url).find("https://hub.co/a/http"), std::string::npos);
  }
}

TEST(HttpTest, ALocationIsFollowedFromWhereItWasGiven) {
  EXPECT_EQ(Follow("https://h/a/b?q", "https://c/d"), "https://c/d");
  EXPECT_EQ(Follow("https://h/a/b?q", "/d"), "https://h/d");
  EXPECT_EQ(Follow("https://h/a/b?q=/x/y", "d"), "https://h/a/d");
  EXPECT_EQ(Follow("https://h", "d"), "https://h/d");
  EXPECT_EQ(Follow("https://h/a", "//c/d"), "https://c/d");
}

TEST(HttpTest, TheProxyOfASchemeIsUsedButForHostsThatAreReachedWithout) {
  HttpOptions options;
  options.https_proxy = "http://proxy:3128";
  options.no_proxy = "localhost, .example.org,10.0.0.1:80";
  EXPECT_EQ(ProxyFor(options, "https://huggingface.co/x"), "http://proxy:3128");
  EXPECT_EQ(ProxyFor(options, "http://huggingface.co/x"), "");
  EXPECT_EQ(ProxyFor(options, "https://hub.example.org/x"), "");
  EXPECT_EQ(ProxyFor(options, "https://example.org:8443/x"), "");
  EXPECT_EQ(ProxyFor(options, "https://notexample.org/x"), "http://proxy:3128");
  EXPECT_EQ(ProxyFor(options, "https://10.0.0.1/x"), "");
  EXPECT_EQ(ProxyFor(options, "https://LOCALHOST/x"), "");
  options.no_proxy = "*";
  EXPECT_EQ(ProxyFor(options, "https://huggingface.co/x"), "");
}

TEST(HttpTest, TheEnvironmentNamesProxiesAndAuthorities) {
  std::map<std::string, std::string> set = {{"HTTPS_PROXY", "http://upper:1"},
                                            {"HTTP_PROXY", "http://never:1"},
                                            {"no_proxy", "a"},
                                            {"SSL_CERT_FILE", "/own.pem"}};
  const auto environment = [&](const std::string& name) { return set[name]; };
  HttpOptions options = HttpOptionsOf("", environment);
  EXPECT_EQ(options.https_proxy, "http://upper:1");
  EXPECT_EQ(options.http_proxy, "");
  EXPECT_EQ(options.no_proxy, "a");
  EXPECT_EQ(options.ca_file, "/own.pem");
  set["https_proxy"] = "http://lower:1";
  options = HttpOptionsOf("/given.pem", environment);
  EXPECT_EQ(options.https_proxy, "http://lower:1");
  EXPECT_EQ(options.ca_file, "/given.pem");
}

TEST(HttpTest, CertificatesThatCannotBeReadAreAnErrorAtOnce) {
  HttpOptions options;
  options.ca_file = "/does/not/exist.pem";
  const absl::Status status = MakeHttpClient(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(Message(status).find("/does/not/exist.pem"), std::string::npos) << status;
  options.ca_file = "/dev/null";
  EXPECT_NE(Message(MakeHttpClient(options).status()).find("none in it"), std::string::npos);
}

TEST(HttpTest, NobodyThereMayPassAndAnAddressThatIsNoneMayNot) {
  const auto client = MakeHttpClient({});
  ASSERT_TRUE(client.ok()) << client.status();
  // Port 9 of this machine: discard, which nothing serves.
  EXPECT_TRUE(absl::IsUnavailable((*client)->Send({"GET", "http://127.0.0.1:9/x", {}}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition((*client)->Send({"GET", "gopher://h/x", {}}).status()));
}

}  // namespace
}  // namespace sft::hub
