package server

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/tenurehq/tenure/store"
)

// Validity of what this package issues. The start lies back so that a client
// whose clock is behind takes it too.
const (
	caLife   = 5 * 365 * 24 * time.Hour
	certLife = 365 * 24 * time.Hour
	backdate = time.Hour
)

// CreateCA makes an authority for development and writes its certificate and key
// in PEM, readable by their owner alone. Whoever has the key can impersonate every
// server that trusts the certificate. It overwrites nothing: the error then
// matches fs.ErrExist.
func CreateCA(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tmpl, err := template("tenure development CA", caLife)
	if err != nil {
		return err
	}
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.MaxPathLenZero = true, true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return err
	}
	return writePair(certFile, keyFile, der, key)
}

// CreateCert makes the certificate of a server for hosts, which are names and
// addresses, under the authority in caCert and caKey, and writes it and its key
// like CreateCA.
func CreateCert(caCert, caKey, certFile, keyFile string, hosts []string) error {
	if len(hosts) == 0 {
		return &store.InvalidError{Field: "host", Rule: "at least one name or address of the server, as clients write it"}
	}
	authority, signer, err := readPair(caCert, caKey)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tmpl, err := template(hosts[0], certLife)
	if err != nil {
		return err
	}
	if tmpl.NotAfter.After(authority.NotAfter) {
		tmpl.NotAfter = authority.NotAfter
	}
	if !tmpl.NotAfter.After(time.Now()) {
		return fmt.Errorf("server: the authority %s ended on %s", caCert, authority.NotAfter.Format(time.DateOnly))
	}
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		switch ip := net.ParseIP(host); {
		case ip != nil:
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		case isHostName(host):
			tmpl.DNSNames = append(tmpl.DNSNames, host)
		default:
			return &store.InvalidError{Field: "host", Value: clip(host), Rule: "a name of letters, digits, dots and hyphens, or an address"}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, authority, key.Public(), signer)
	if err != nil {
		return err
	}
	return writePair(certFile, keyFile, der, key)
}

func isHostName(s string) bool {
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

func template(name string, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"tenure"}},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
	}, nil
}

func readPair(certFile, keyFile string) (*x509.Certificate, crypto.Signer, error) {
	der, err := readPEM(certFile, "CERTIFICATE")
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("server: %s: %w", certFile, err)
	}
	if der, err = readPEM(keyFile, "PRIVATE KEY"); err != nil {
		return nil, nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, nil, fmt.Errorf("server: %s: %w", keyFile, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, fmt.Errorf("server: the key in %s is not that of the certificate in %s", keyFile, certFile)
	}
	if !cert.IsCA {
		return nil, nil, fmt.Errorf("server: %s is no authority's certificate", certFile)
	}
	return cert, key, nil
}

func readPEM(name, kind string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("server: %s holds no PEM block %q", name, kind)
	}
	return block.Bytes, nil
}

// writePair writes both files or neither.
func writePair(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeNew(keyFile, "PRIVATE KEY", secret); err != nil {
		return err
	}
	if err := writeNew(certFile, "CERTIFICATE", der); err != nil {
		return errors.Join(err, os.Remove(keyFile))
	}
	return nil
}

func writeNew(name, kind string, der []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("server: %s is there already, and is not overwritten: %w", name, fs.ErrExist)
	}
	if err != nil {
		return err
	}
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: der})
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
