#include "server/webhooks/address_guard.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace sft::server {
namespace {

AddressGuard::Address Parse(const std::string& text) {
  AddressGuard::Address address;
  const std::string mapped = text.find(':') == text.npos ? "::ffff:" + text : text;
  EXPECT_EQ(inet_pton(AF_INET6, mapped.c_str(), address.bytes), 1) << text;
  return address;
}

// Names stand for these addresses.
absl::StatusOr<std::string> Check(const std::string& url, const std::vector<std::string>& addresses,
                                  const std::vector<std::string>& allowed = {}) {
  const auto guard = AddressGuard::Make(
      allowed, [&](const std::string&) -> absl::StatusOr<std::vector<AddressGuard::Address>> {
        std::vector<AddressGuard::Address> parsed;
        for (const std::string& address : addresses) parsed.push_back(Parse(address));
        return parsed;
      });
  EXPECT_TRUE(guard.ok()) << guard.status();
  return guard->Check(url);
}

TEST(AddressGuardTest, OnlyTheInternetIsReached) {
  for (const char* address :
       {"0.0.0.0",       "10.0.0.1",        "100.64.0.1", "127.0.0.1",       "127.255.255.255",
        "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255",  "192.0.0.8",
        "192.168.1.1",   "198.19.0.1",      "224.0.0.1",  "255.255.255.255", "::",
        "::1",           "fe80::1",         "febf::1",    "fc00::1",         "fd12::1",
        "ff02::1",       "2001:db8::1",     "2001::1",    "2002:7f00:1::1",  "64:ff9b::7f00:1",
        "::127.0.0.1",   "::ffff:10.0.0.1", "fec0::1",    "100::1"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(Check("https://example.com/", {address}).status()))
        << address;
  }
  for (const char* address :
       {"8.8.8.8", "168.63.129.15", "168.63.129.17", "172.15.0.1", "172.32.0.1", "100.128.0.1",
        "9.255.0.1", "11.0.0.1", "223.255.255.1", "2606:4700::1111", "2a00:1450::1"}) {
    EXPECT_TRUE(Check("https://example.com/", {address}).ok()) << address;
  }
}

TEST(AddressGuardTest, TheFirstAddressThatIsAllowedIsTheOneToConnectTo) {
  EXPECT_EQ(*Check("https://example.com/x", {"10.0.0.1", "8.8.8.8", "9.9.9.9"}), "8.8.8.8:443");
  EXPECT_EQ(*Check("https://example.com:8443/x", {"2606:4700::1111"}), "[2606:4700::1111]:8443");
}

// Who may add webhooks learns no names of the network that the server stands in.
TEST(AddressGuardTest, ANameInsideIsRefusedAsOneThatIsNotThere) {
  for (const char* scheme : {"https", "http"}) {
    const std::string url = std::string(scheme) + "://db.example.com/";
    const absl::Status missing = Check(url, {}).status();
    EXPECT_TRUE(absl::IsPermissionDenied(missing)) << missing;
    EXPECT_EQ(Check(url, {"10.0.0.1"}).status(), missing);
    EXPECT_EQ(Check(url, {"fd00::1", "127.0.0.1"}).status(), missing);
  }
}

TEST(AddressGuardTest, AnOperatorAllowsNetworks) {
  const std::vector<std::string> allowed = {"10.1.0.0/16", "fd00::/9", "192.168.7.7"};
  for (const char* address : {"10.1.0.1", "10.1.255.255", "fd7f::1", "192.168.7.7"}) {
    EXPECT_TRUE(Check("https://inside/", {address}, allowed).ok()) << address;
  }
  for (const char* address : {"10.0.255.255", "10.2.0.0", "fd80::1", "192.168.7.8"}) {
    EXPECT_FALSE(Check("https://inside/", {address}, allowed).ok()) << address;
  }
  for (const char* text : {"10.1.0.0/33", "10.1", "fd00::/129", "10.0.0.0/", "10.0.0.0/8x",
                           "example.com", "10.0.0.0/-1", ""}) {
    EXPECT_TRUE(absl::IsInvalidArgument(AddressGuard::Make({text}).status())) << text;
  }
}

TEST(AddressGuardTest, BeyondThisMachineTheAddressIsHttps) {
  EXPECT_EQ(*Check("http://localhost:8080/x", {"127.0.0.1"}, {"127.0.0.0/8"}), "127.0.0.1:8080");
  EXPECT_EQ(*Check("http://localhost/", {"::1"}, {"::1"}), "[::1]:80");
  EXPECT_FALSE(Check("http://localhost:8080/x", {"127.0.0.1"}).ok()) << "not allowed";
  const absl::Status clear = Check("http://example.com/", {"8.8.8.8"}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(clear));
  EXPECT_NE(clear.message().find("https"), std::string_view::npos) << clear;
}

TEST(AddressGuardTest, WhatIsNoPlainAddressIsRefused) {
  for (const char* url :
       {"", "example.com", "ftp://example.com/", "https://", "https://ann:x@example.com/",
        "https://example.com:0/", "https://example.com:70000/", "https://example.com:x/",
        "https://[::1/", "https://exam ple.com/", "https://example.com\\@inside/",
        "https://[::1]x/", "file:///etc/passwd", "https://example.com/\xe2\x80\xae"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Check(url, {"8.8.8.8"}).status())) << url;
  }
  EXPECT_EQ(TargetOf("https://[2606:4700::1111]:444/a?b")->host, "2606:4700::1111");
  EXPECT_EQ(TargetOf("https://[2606:4700::1111]:444/a?b")->port, 444);
}

// What the system says of names that are addresses, as programs write them.
TEST(AddressGuardTest, OtherSpellingsOfLoopbackAreLoopback) {
  const AddressGuard guard = AddressGuard::Make({}).value();
  for (const char* url :
       {"https://127.0.0.1/", "https://2130706433/", "https://0x7f.1/", "https://127.1/",
        "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://0/", "https://localhost/"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(guard.Check(url).status()))
        << url << guard.Check(url).status();
  }
}

}  // namespace
}  // namespace sft::server
