package keys

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// purposesOf returns the label of each constant of keys.go, by its name.
func purposesOf(t *testing.T) map[string]Purpose {
	file, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	purposes := map[string]Purpose{}
	for _, decl := range file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for _, spec := range d.Specs {
			s := spec.(*ast.ValueSpec)
			if kind, ok := s.Type.(*ast.Ident); !ok || kind.Name != "Purpose" || len(s.Names) != 1 || s.Doc == nil {
				t.Errorf("%s: not one Purpose with a comment", s.Names[0].Name)
				continue
			}
			label, err := strconv.Unquote(s.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			purposes[s.Names[0].Name] = Purpose(label)
		}
	}
	return purposes
}

func TestPurposesDiffer(t *testing.T) {
	purposes := purposesOf(t)
	if len(purposes) != 13 {
		t.Errorf("%d purposes, want 13", len(purposes))
	}
	for a, x := range purposes {
		if !strings.HasPrefix(string(x), "streamdp/") || strings.IndexByte(string(x), 0) != len(x)-1 {
			t.Errorf("%s: %q is not streamdp/… with one zero byte, its last", a, x)
		}
		for b, y := range purposes {
			if a != b && strings.HasPrefix(string(y), string(x)) {
				t.Errorf("%s: %q begins with %q, the label of %s", b, y, x, a)
			}
		}
	}
}

// TestDerive: the vectors were made by the program before dp derived all keys, so no key has changed.
func TestDerive(t *testing.T) {
	var master, salt [32]byte
	for i := range master {
		master[i], salt[i] = byte(i), byte(100+i)
	}
	of := func(purpose Purpose, salt []byte) []byte {
		key := Derive(&master, purpose, salt)
		return key[:]
	}
	sealed := func(key, nonce []byte, with string) []byte {
		block, err := aes.NewCipher(key)
		if err != nil {
			t.Fatal(err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			t.Fatal(err)
		}
		return aead.Seal(nil, nonce, []byte("content"), []byte(with))
	}

	tested := map[Purpose]bool{}
	check := func(purpose Purpose, got []byte, want string) {
		t.Helper()
		if hex.EncodeToString(got) != want {
			t.Errorf("%q: %x, want %s", purpose, got, want)
		}
		tested[purpose] = true
	}
	check(ForLedger, of(ForLedger, nil), "0cd18f2bdf54586fe0b87617bfafee85415563123631c2d7b5964d432d09e8e7")
	check(ForControl, of(ForControl, nil), "df3af45e66366bb85841f7d0f5873d7f9bfbdf4f31b8a7c4a3aba0ac23f42909")
	check(ForRequests, of(ForRequests, nil), "d16093e658c4d87d05d1236433735d55ddf0fbed9be4ff240e9331596919a289")

	mac := hmac.New(sha256.New, of(ForAnchors, nil))
	mac.Write(append([]byte{1}, make([]byte, 31)...))
	check(ForAnchors, mac.Sum(nil), "d4e002e9023f11b2153688143744b35bb3939eeae867c439d840ec16993fea64")

	bounds := append([]byte("\x00\x00\x00\x00\x00\x00\x00\x05s/0/7"), salt[:16]...)
	check(ForBoundaries, of(ForBoundaries, bounds), "c9c51c7e0c87b443b4dceb35a1380463103b29feb5e0eb35d875c7bb842c6597")

	check(ForPartials, sealed(of(ForPartials, salt[:]), make([]byte, 12), ""),
		"b4e661a9f3d67fd9fe2a9a42a4f49e6269d004635066ad")

	key, nonce := DeriveWithNonce(&master, ForState, salt[:])
	file := "\x01\x00\x00\x00\x00\x00\x00\x00t\x04\x00\x00\x00\x00\x00\x00\x00kind\x03\x00\x00\x00\x00\x00\x00\x00"
	if hex.EncodeToString(nonce[:]) != "2c4415a2ce0178e0defbf7a2" {
		t.Errorf("the nonce of a file is %x", nonce)
	}
	check(ForState, sealed(key[:], nonce[:], file), "8a583bd9e62d3e46e33d5f04b4ce336184b7df61fd791b")
	if !bytes.Equal(key[:], of(ForState, salt[:])) {
		t.Error("DeriveWithNonce and Derive return different keys")
	}

	check(ForWrap, of(ForWrap, nil), "b33f6b7aa156b95b3fc863a313c06fd11a93dad801f5eedbc7fb6e7a36e03a71")
	check(ForStore, of(ForStore, salt[:]), "e5f16d7bb1914940cf7909bca9f1939023ce65a342354303cfbf19f634009ad6")
	check(ForStore, of(ForStore, []byte("abc")), "ad26460048b6d4e6ba6b191909be8d67b356fd8e1d8c9ef36105f45107c0ab61")
	wrap := Derive(&master, ForWrap, nil)
	value := Derive(&wrap, ForState, salt[:])
	genesis := string(make([]byte, 32)) + "\x00\x00\x00\x03k:0before" + string(salt[:])
	check(ForState, sealed(value[:], make([]byte, 12), genesis), "4ec4b4c50695d648099cca85e16a30edea025790554e52")

	// These have their vectors in TestEpochKeys of package dp, which derives them.
	for _, purpose := range []Purpose{ForEpoch, ForUsers, ForNoise, ForAbsorbing} {
		tested[purpose] = true
	}
	for name, purpose := range purposesOf(t) {
		if !tested[purpose] {
			t.Errorf("%s has no vector", name)
		}
	}
}
